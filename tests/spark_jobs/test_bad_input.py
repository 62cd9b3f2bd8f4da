"""Bad input: for each of many small files what exactly survives, and each decoded byte is accounted for.

A case is (file's name, stored bytes, fates, decoded bytes): a fate is a record's text, or `!` and the rule of
a range that holds none. Whatever the case, readers of splits must find the same as one reader.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from bloomery.config.sources import IngestConfig, Source
from spark_jobs.readers.listing import list_source
from tests.spark_jobs.files import check_cover, fates, read, read_split, write


class Case(NamedTuple):
    name: str
    data: bytes
    fates: list[str]
    size: int | None = None
    """Decoded bytes of a compressed file, rows of Parquet; None where it is that of the file."""
    limits: Mapping[str, int] = MappingProxyType({})


def line(text, **more) -> bytes:
    return json.dumps({"text": text, **more}).encode() + b"\n"


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def decodable(packed: bytes, suffix: str) -> int:
    """How many bytes of a member that is cut short still decode; bzip2 needs a block whole."""
    made = {"gz": zlib.decompressobj(31), "zst": zstandard.ZstdDecompressor().decompressobj()}
    made |= {"xz": lzma.LZMADecompressor(), "bz2": bz2.BZ2Decompressor()}
    return len(made[suffix].decompress(packed))


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that hold no magic number and no line end."""
    draw = random.Random(seed)
    return bytes(draw.choice(b"abcdefgh\x80\x90\xa0") for _ in range(size))


def warc_record(kind: str, body: bytes, http: str = "", length: int | None = None, **headers: str) -> bytes:
    block = f"{http}\r\n\r\n".encode() + body if http else body
    content_type = "application/http; msgtype=response" if http else "text/plain"
    named = {"WARC-Type": kind, "Content-Type": content_type} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    size = len(block) if length is None else length
    return f"WARC/1.0\r\n{head}Content-Length: {size}\r\n\r\n".encode() + block + b"\r\n\r\n"


def page(text: str, content_type: str = "text/html; charset=utf-8", body: bytes | None = None) -> bytes:
    return warc_record(
        "response",
        text.encode() if body is None else body,
        f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}",
        WARC_Target_URI=f"https://example.org/{text}",
    )


def table(*groups: list, checksum: bool = True, **columns: list) -> bytes:
    """Parquet of one row group a list of texts; each group takes the other columns' values as they come."""
    sink, writer = io.BytesIO(), None
    for texts in groups:
        made = pa.table({"text": texts} | {name: values[: len(texts)] for name, values in columns.items()})
        writer = writer or parquet.ParquetWriter(
            sink,
            made.schema,
            write_page_checksum=checksum,
            write_statistics=False,
            compression="none",
            use_dictionary=False,
        )
        writer.write_table(made)
    writer.close()
    return sink.getvalue()


LONG = line(random.Random(1).randbytes(500).hex())
A, B, C = line("a"), line("b"), line("c")
ABC = len(A + B + C)
PAGES = [page(name) for name in "abc"]
SHORT = {"max_record_bytes": 1000}
GROUPS = table(["a1", "a2"], ["b" * 50, "b" * 50], ["c1"])
TWO_BLOCKS = b"".join(line(random.Random(n).randbytes(400).hex()) for n in range(1500))  # of 900 kB each
BLOCKS = bz2.compress(TWO_BLOCKS)

JSONL = [
    Case("crlf.jsonl", A.replace(b"\n", b"\r\n") + B, ["a", "b"]),
    Case("bom.jsonl", b"\xef\xbb\xbf" + A + B, ["a", "b"]),
    Case("utf16le.jsonl", '\ufeff{"text": "ਊa"}\n\n{"text": "b"}\n'.encode("utf-16-le"), ["ਊa", "b"]),
    Case("utf16be.jsonl", '\ufeff{"text": "ਊa"}\n\n{"text": "b"}'.encode("utf-16-be"), ["ਊa", "b"]),
    Case("utf32.jsonl", '\ufeff{"text": "ਊa"}\n\n{"text": "b"}'.encode("utf-32-le"), ["ਊa", "b"]),
    Case("utf32.csv", "\ufefftext\na\n".encode("utf-32-be"), ["!csv.header", "a"]),
    Case("utf16-odd.jsonl", '\ufeff{"text": "a"}\n'.encode("utf-16-le") + b"{", ["a", "!encoding"]),
    Case("byte.jsonl", A + b'{"text": "\xff"}\n' + B, ["a", "!encoding", "b"]),
    Case("byte-elsewhere.jsonl", A + b'{"text": "x", "n": "\xff"}\n', ["a", "!encoding"]),
    Case("nul.jsonl", A + b'{"text": "\0"}\n' + B, ["a", "!jsonl.syntax", "b"]),
    Case("nul-escaped.jsonl", line("a\0b"), ["a\0b"]),
    Case("nuls.jsonl", A + b"\0" * 100 + b"\n" + B, ["a", "!jsonl.syntax", "b"]),
    Case("surrogate.jsonl", b'{"text": "\\ud800"}\n' + A, ["!unicode.surrogate", "a"]),
    Case("surrogate-elsewhere.jsonl", b'{"text": "a", "n": "\\ud800"}\n', ["a"]),
    Case("surrogate-key.jsonl", b'{"text": "a", "\\ud800": 1}\n', ["a"]),
    Case("list.jsonl", b'["a"]\n1\n"a"\nnull\n' + A, ["!jsonl.type"] * 4 + ["a"]),
    Case(
        "text.jsonl",
        b'{"text": null}\n{"id": 1}\n{"text": 1}\n{"text": NaN}\n{"text": ["a"]}\n',
        ["!jsonl.text"] * 5,
    ),
    Case(
        "numbers.jsonl", b'{"text": "a", "n": 123456789012345678901234567890, "x": NaN, "y": 1e999}\n', ["a"]
    ),
    Case("ids.jsonl", line("a", id=1) + line("a", id=1), ["a", "a"]),
    Case("mixed.jsonl", line("a", n=1) + line("b", n="1") + line("c", n=[{"n": None}]), ["a", "b", "c"]),
    Case("blank.jsonl", b"\n \n" + A + b"\r\n\n" + B + b"  ", ["!jsonl.blank", "a", "b"]),
    Case("only-blank.jsonl", b"\n  \n\t", ["!jsonl.blank"]),
    Case("no-line-end.jsonl", A + B[:-1], ["a", "b"]),
    Case("cut.jsonl", A + B[:-4], ["a", "!jsonl.syntax"]),
    Case("glued.jsonl", A[:-1] + B + C, ["!jsonl.syntax", "c"]),
    Case("long.jsonl", A + line("x" * 2000) + B, ["a", "!record.too_long", "b"], limits=SHORT),
    Case("no-space.jsonl", line("x" * (2 << 20)), ["x" * (2 << 20)]),
    Case("deep.jsonl", b'{"text": "a", "n": ' + b"[" * 9999 + b"\n" + A, ["!jsonl.syntax", "a"]),
    Case("space.jsonl", line(" \n ") + line("?!. ..."), [" \n ", "?!. ..."]),
    Case("cap.jsonl", A + B + C, ["a", "!file.too_long"], limits={"max_file_bytes": len(A) + 3}),
]
EMPTY = [
    Case(name, data, ["!file.empty"], 0)
    for name, data in {
        "empty.jsonl": b"",
        "empty.txt": b"",
        "empty.warc": b"",
        "empty.csv": b"",
        "empty.parquet": b"",
        "no-bytes.jsonl.gz": b"",
        "empty.jsonl.gz": gz(b""),
        "empty.jsonl.zst": zst(b""),
        "empty.jsonl.xz": lzma.compress(b""),
        "empty.jsonl.bz2": bz2.compress(b""),
    }.items()
]
PACKED = [
    case
    for suffix, pack in {"gz": gz, "zst": zst, "xz": lzma.compress, "bz2": bz2.compress}.items()
    for case in [
        Case(f"members.jsonl.{suffix}", pack(A) + pack(B) + pack(C), ["a", "b", "c"], ABC),
        Case(f"across.jsonl.{suffix}", pack(A + B[:5]) + pack(B[5:] + C), ["a", "b", "c"], ABC),
        Case(
            f"cut.jsonl.{suffix}",
            pack(A) + pack(LONG)[:-300],
            ["a", "!file.broken"],
            len(A) + decodable(pack(LONG)[:-300], suffix),
        ),
        Case(
            f"between.jsonl.{suffix}", pack(A) + noise(99) + pack(B), ["a", "!file.broken", "b"], len(A + B)
        ),
        Case(f"before.jsonl.{suffix}", noise(99) + pack(A), ["!file.broken", "a"], len(A)),
        Case(f"behind.jsonl.{suffix}", pack(A) + noise(99), ["a", "!file.broken"], len(A)),
        Case(f"other.jsonl.{suffix}", A, ["!file.broken"], 0),
        Case(
            f"flipped.jsonl.{suffix}",
            pack(A) + flipped(pack(B), 12 if suffix == "bz2" else 1) + pack(C),
            ["a", "!file.broken", "c"],
            len(A + C),
        ),
        Case(
            f"broken-line.jsonl.{suffix}",
            pack(A + B[:5]) + noise(9) + pack(C),
            ["a", "!file.broken", "c"],
            len(A + C) + 5,
        ),
    ]
]
DAMAGED = [
    Case("checksum.jsonl.gz", gz(A) + flipped(gz(B), -6) + gz(C), ["a", "!file.broken", "c"], ABC),
    Case("padded.jsonl.gz", gz(A) + bytes(1000) + gz(B) + bytes(512), ["a", "b"], len(A + B)),
    Case(
        "skippable.jsonl.zst",
        zst(A) + struct.pack("<II", 0x184D2A53, 5) + b"hello" + zst(B),
        ["a", "b"],
        len(A + B),
    ),
    Case("checksum.jsonl.zst", zst(A) + flipped(zst(B), -1) + zst(C), ["a", "!file.broken", "c"], ABC),
    Case("bomb.txt.gz", gz(bytes(9 << 20)), ["!file.too_long"], 1 << 20, {"max_file_bytes": 1 << 20}),
    Case("bomb.txt.zst", zst(bytes(9 << 20)), ["!file.too_long"], 1 << 20, {"max_file_bytes": 1 << 20}),
    Case(
        "checksum-and-cap.txt.gz",
        flipped(gz(bytes(9999)), -6),
        ["!file.broken"],
        999,
        {"max_file_bytes": 999},
    ),
    Case(
        "checksum-and-cap.jsonl.gz",
        flipped(gz(bytes(9999)), -6),
        ["!file.broken", "!file.too_long"],
        999,
        {"max_file_bytes": 999},
    ),
    Case("bomb.jsonl.xz", lzma.compress(bytes(9 << 20)), ["!record.too_long"], 9 << 20, SHORT),
    Case("bomb.jsonl.bz2", bz2.compress(bytes(9 << 20)), ["!record.too_long"], 9 << 20, SHORT),
    Case("cut.txt.gz", gz(LONG)[:-99], ["!file.broken"], decodable(gz(LONG)[:-99], "gz")),
    Case(
        "header.jsonl.bz2",
        bz2.compress(A) + flipped(bz2.compress(B), 1),
        ["a", "!file.broken", "b"],
        len(A + B),
    ),
]
HTML = b'<meta charset="latin-1"><p>caf\xe9'
TEXTS = [
    Case(
        "latin-1.txt",
        "Die Übergröße führte zu großer Überraschung.".encode("latin-1"),
        ["Die Übergröße führte zu großer Überraschung."],
    ),
    Case(
        "koi8.md",
        "Это русский текст в старой кодировке.".encode("koi8-r"),
        ["Это русский текст в старой кодировке."],
    ),
    Case(
        "one-byte.txt",
        "Die Übergröße führte zu".encode() + b"\xff Ende",
        ["Die Übergröße führte zu\ufffd Ende"],
    ),
    Case("utf-16.txt", "\ufeffnaïve".encode("utf-16-be"), ["naïve"]),
    Case("utf-16-no-mark.txt", "A plain sentence.".encode("utf-16-le"), ["A plain sentence."]),
    Case("bom.md", b"\xef\xbb\xbf# a", ["# a"]),
    Case("nul.txt", b"a\0b", ["a\0b"]),
    Case("space.txt", b" \n\t", [" \n\t"]),
    Case("picture.txt", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3, ["!encoding"]),
    Case("picture.png", b"\x89PNG", ["!file.format"]),
    Case("declared.html", HTML, [HTML.decode("latin-1")]),
    Case("wrong-charset.html", '<meta charset="latin-1">café'.encode(), ['<meta charset="latin-1">café']),
    Case("unknown-charset.html", b'<meta charset="klingon"><p>plain', ['<meta charset="klingon"><p>plain']),
    Case("deep.html", b"<div>" * 50_000, ["<div>" * 50_000]),
    Case("long.txt", b"x" * 2000, ["!record.too_long"], limits=SHORT),
    Case("cap.txt", b"x" * 2000, ["!file.too_long"], limits={"max_file_bytes": 100}),
    Case("broken.py", b"def f(:", ["!python.syntax"]),
]
ROWS = b"id,text\r\n1,a\r\n2,b\r\n"
CSV = [
    Case("good.csv", ROWS, ["!csv.header", "a", "b"]),
    Case("quotes.csv", b'text,n\n"a\n""b""",1\n\n c,2\n', ["!csv.header", 'a\n"b"', "!csv.blank", " c"]),
    Case("open-quote.csv", b'text\na\n"b\nc\n', ["!csv.header", "a", "!csv.syntax", "c"]),
    Case(
        "columns.csv",
        b"text,n\na,1\nb\nc,1,2\nd,2\n",
        ["!csv.header", "a", "!csv.columns", "!csv.columns", "d"],
    ),
    Case("no-text.csv", b"id\n1\n", ["!csv.header", "!csv.text"]),
    Case(
        "latin-1.csv",
        "text\nDie Übergröße\nführte zu großer Überraschung\n".encode("latin-1"),
        ["!csv.header", "Die Übergröße", "führte zu großer Überraschung"],
    ),
    Case("utf-16.csv", "\ufefftext\na\n".encode("utf-16-le"), ["!csv.header", "a"]),
    Case("bom.csv", b"\xef\xbb\xbftext\na\n", ["!csv.header", "a"]),
    Case(
        "long.csv",
        b"text\na\n" + b"x" * 2000 + b"\nb\n",
        ["!csv.header", "a", "!record.too_long", "b"],
        limits=SHORT,
    ),
    Case("tabs.tsv", b"id\ttext\n1\ta,b\n", ["!csv.header", "a,b"]),
    Case(
        "cut.csv.gz", gz(b"text\na\n") + noise(9) + gz(b"b\n"), ["!csv.header", "a", "!file.broken", "b"], 9
    ),
]
INFO = warc_record("warcinfo", b"software: test")
WET = warc_record("conversion", "naïve".encode(), WARC_Target_URI="https://example.org/a")
INNER = page("x", "application/gzip", b"".join(map(gz, PAGES)))
CHUNKED = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
WARC = [
    Case("good.warc", b"".join(PAGES), ["a", "b", "c"]),
    Case("good.warc.gz", b"".join(map(gz, PAGES)), ["a", "b", "c"], sum(map(len, PAGES))),
    Case("one-member.warc.gz", gz(b"".join(PAGES)), ["a", "b", "c"], sum(map(len, PAGES))),
    Case("good.warc.zst", b"".join(map(zst, PAGES)), ["a", "b", "c"], sum(map(len, PAGES))),
    Case("good.warc.wet.gz", gz(INFO) + gz(WET), ["!warc.type", "naïve"], len(INFO + WET)),
    Case("cut.warc", b"".join(PAGES)[:-20], ["a", "b", "!warc.syntax"]),
    Case(
        "cut.warc.gz",
        gz(PAGES[0]) + (cut := gz(PAGES[1])[:-40]),
        ["a", "!file.broken"],
        len(PAGES[0]) + decodable(cut, "gz"),
    ),
    Case("between.warc", PAGES[0] + noise(99) + b"\n" + PAGES[1], ["a", "!warc.syntax", "b"]),
    Case(
        "between.warc.gz",
        gz(PAGES[0]) + noise(99) + gz(PAGES[1]),
        ["a", "!file.broken", "b"],
        sum(map(len, PAGES[:2])),
    ),
    Case(
        "flipped.warc.gz",
        gz(PAGES[0]) + flipped(gz(PAGES[1]), -7) + gz(PAGES[2]),
        ["a", "!file.broken", "c"],
        sum(map(len, PAGES)),
    ),
    Case(
        "garbage-member.warc.gz",
        gz(PAGES[0]) + gz(b"garbage") + gz(PAGES[1]),
        ["a", "!warc.syntax", "b"],
        sum(map(len, PAGES[:2])) + 7,
    ),
    Case(
        "length-more.warc",
        PAGES[0] + warc_record("conversion", b"b", length=200) + PAGES[2],
        ["a", "!warc.syntax", "c"],
    ),
    Case(
        "length-less.warc",
        PAGES[0] + warc_record("conversion", b"bbbb", length=2) + PAGES[2],
        ["a", "!warc.syntax", "c"],
    ),
    Case(
        "length-none.warc",
        PAGES[0] + PAGES[1].replace(b"Content-Length", b"Content-Size") + PAGES[2],
        ["a", "!warc.syntax", "c"],
    ),
    Case(
        "nested.warc",
        page("x", "text/plain", PAGES[0] + PAGES[1]) + PAGES[2],
        [(PAGES[0] + PAGES[1]).decode(), "c"],
    ),
    Case("nested.warc.gz", gz(INNER) + gz(PAGES[2]), ["!warc.media_type", "c"], len(INNER + PAGES[2])),
    Case(
        "types.warc",
        INFO + warc_record("request", b"x", "GET / HTTP/1.1") + page("i", "image/png") + PAGES[0],
        ["!warc.type", "!warc.type", "!warc.media_type", "a"],
    ),
    Case("latin-1.warc", page("x", "text/html; charset=latin-1", "caf\xe9".encode("latin-1")), ["café"]),
    Case("meta.warc", page("x", "text/html", HTML), [HTML.decode("latin-1")]),
    Case("wrong-charset.warc", page("x", "text/html; charset=latin-1", "café".encode()), ["café"]),
    Case("chunked.warc", page("x", "text/html\r\nTransfer-Encoding: chunked", CHUNKED), ["abc"]),
    Case("packed.warc", page("x", "text/html\r\nContent-Encoding: gzip", gz(b"abc")), ["abc"]),
    Case(
        "payload-bomb.warc",
        page("x", "text/html\r\nContent-Encoding: gzip", gz(bytes(1 << 20))),
        ["!record.too_long"],
        limits={"max_record_bytes": 9999},
    ),
    Case(
        "digest.warc",
        warc_record("conversion", b"a", WARC_Block_Digest="sha1:" + "A" * 32) + PAGES[1],
        ["!warc.digest", "b"],
    ),
    Case("long.warc", page("x" * 2000) + PAGES[1], ["!record.too_long", "b"], limits=SHORT),
    Case("other.warc", b"no archive at all", ["!warc.syntax"]),
]
PARQUET = [
    Case("good.parquet", GROUPS, ["a1", "a2", "b" * 50, "b" * 50, "c1"], 5),
    Case("cut.parquet", GROUPS[:-20], ["!file.broken"], 0),
    Case(
        "flipped.parquet", flipped(GROUPS, GROUPS.index(b"bbbbb") + 9), ["a1", "a2", "!file.broken", "c1"], 5
    ),
    Case("null.parquet", table(["a", None]), ["a", "!parquet.text"], 2),
    Case("integers.parquet", table([1, 2]), ["!parquet.text"] * 2, 2),
    Case("other.parquet", b"PAR1 and no more", ["!file.broken"], 0),
    Case("no-rows.parquet", table([]), ["!file.empty"], 0),
    Case(
        "not-utf8.parquet",
        table(["a", "xx"], checksum=False).replace(b"xx", b"\xff\xfe"),
        ["a", "!encoding"],
        2,
    ),
    Case("long.parquet", table(["a", "x" * 2000]), ["a", "!record.too_long"], 2, SHORT),
]
CASES = [*JSONL, *EMPTY, *PACKED, *DAMAGED, *TEXTS, *CSV, *WARC, *PARQUET]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_survives(tmp_path, case):
    file = write(tmp_path, case.name, case.data)
    records = read(file, **case.limits)
    assert fates(records) == case.fates, [record.detail for record in records]
    check_cover(file, records, file.size if case.size is None else case.size)
    for size in (23, 100, 1000):
        if file.size // size < 300:
            assert read_split(file, size, **case.limits) == records
    assert all(bool(record.rule) == bool(record.detail) == (record.document is None) for record in records)


def test_all_of_them_in_one_folder_through_the_engine(pipeline, monkeypatch):
    """No file fails the job; the rows are those of readers without an engine, and all are accounted for."""
    folder = pipeline.corpus
    for case in CASES:
        if not case.limits:
            (folder / case.name).write_bytes(case.data)
    (folder / "a name\nof two lines.jsonl").write_bytes(A)
    (folder / os.fsdecode(b"\xff.jsonl")).write_bytes(A)
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "up").symlink_to(folder)
    (folder / "gone.jsonl").write_bytes(A)
    (folder / "changed.jsonl").write_bytes(A)
    files = list_source(Source(name="corpus", uri=str(folder)))
    listed = pipeline.run()
    (folder / "gone.jsonl").unlink()
    (folder / "changed.jsonl").write_bytes(A + A)
    monkeypatch.setattr("tests.spark_jobs.conftest.take", lambda *_: listed)
    pipeline.run("ingest", configs={"ingest": IngestConfig()})
    rows = pipeline.rows("ingest")
    expected = {
        (record.id, file.path, *record.place, record.length, record.status, record.rule or None)
        for file in files
        for record in read(file)
    }
    names = ("id", "path", "member", "offset", "length", "status", "rule")
    found = {tuple(row[name] for name in names) for row in rows}
    assert len(rows) == len(found) and found == expected
    rules = {row["path"]: row["rule"] for row in rows}
    assert rules["gone.jsonl"] == rules["changed.jsonl"] == "file.changed"
    assert rules["loop.jsonl"] == rules["up"] == "file.unreadable"
    assert {"%FF.jsonl", "a name\nof two lines.jsonl", *(file.path for file in files)} == set(rules)
