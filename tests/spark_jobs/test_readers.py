"""Readers: every decoded byte belongs to one record or quarantined range, whatever the file holds."""

from __future__ import annotations

import gzip
import json
import random
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.config.sources import IngestConfig
from spark_jobs.readers.listing import File, SourceError, format_of
from spark_jobs.readers.records import Fields, read_records


def write(folder, name, data, kind="jsonl"):
    path = folder / name
    path.write_bytes(data)
    stat = path.stat()
    return File("test", name, str(path), stat.st_size, str(stat.st_mtime_ns), kind)


def read(file, **limits):
    return list(read_records(file, Fields(), IngestConfig(**limits)))


def line(text, **more):
    return json.dumps({"text": text, **more}).encode() + b"\n"


@pytest.mark.parametrize(
    "bad, rule, detail",
    [
        (b'{"text": "cut\n', "jsonl.syntax", "Invalid control character"),
        (b'["a", "list"]\n', "jsonl.type", "found a list, expected an object"),
        (b'{"text": null}\n', "jsonl.text", "holds null, expected a string"),
        (b'{"text": 1}\n', "jsonl.text", "holds a number"),
        (b'{"id": 1}\n', "jsonl.text", "holds nothing"),
        (b'{"text": "\\ud800"}\n', "unicode.surrogate", "U+D800"),
        (b'{"text": "caf\xe9"}\n', "encoding", "0xe9 at 13"),
        (b'{"text": ' + b"[" * 100_000 + b"\n", "jsonl.syntax", ""),
        (line("x" * 2000), "record.too_long", "2013 bytes"),
    ],
)
def test_a_bad_line_is_quarantined_and_its_neighbours_kept(tmp_path, bad, rule, detail):
    good = line("good")
    file = write(tmp_path, "a.jsonl", good + bad + good)
    first, found, last = read(file, max_record_bytes=1000 if rule == "record.too_long" else 1 << 20)
    assert (first.text, last.text) == ("good", "good")
    assert (found.rule, found.offset, found.length, found.text) == (rule, len(good), len(bad), None)
    assert detail in found.detail
    assert len({first.id, found.id, last.id}) == 3


def test_blank_lines_bom_and_a_missing_line_end(tmp_path):
    data = b"\xef\xbb\xbf" + line("one") + b"\n  \n" + line("two", id=7, url="u") + line("three")[:-1]
    records = read(write(tmp_path, "a.jsonl", data))
    assert [r.text for r in records] == ["one", "two", "three"]
    assert (records[1].external_id, records[1].url) == ("7", "u")
    assert sum(r.length for r in records) == len(data)


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_files_without_a_record(tmp_path, data):
    records = read(write(tmp_path, "a.jsonl", data))
    assert [r.rule for r in records] == (["jsonl.syntax"] if data else [])


@pytest.mark.parametrize("pack, name", [(gzip.compress, "a.jsonl.gz"), (zstandard.compress, "a.jsonl.zst")])
def test_a_cut_file_keeps_what_came_before_the_cut(tmp_path, pack, name):
    draw = random.Random(1)
    lines = b"".join(line(draw.randbytes(300).hex()) for _ in range(5000))
    packed = pack(lines)
    records = read(write(tmp_path, name, packed[: len(packed) // 2]))
    kept, cut = records[:-1], records[-1]
    assert 1000 < len(kept) < 4000 and not any(r.rule for r in kept)
    assert cut.rule == "file.broken" and "cut short" in cut.detail
    assert sum(r.length for r in kept) == cut.offset
    whole = read(write(tmp_path, f"whole-{name}", packed))
    assert [r.text for r in whole][: len(kept)] == [r.text for r in kept] and len(whole) == 5000


def test_damage_inside_a_packed_file_is_named(tmp_path):
    packed = bytearray(gzip.compress(b"".join(line(f"{n}") for n in range(50))))
    packed[-6] ^= 1  # in the checksum
    (found,) = read(write(tmp_path, "a.jsonl.gz", bytes(packed)))
    assert found.rule == "file.broken" and "incorrect data check" in found.detail
    (found,) = read(write(tmp_path, "a.jsonl.zst", b"no zstandard"))
    assert found.rule == "file.broken" and "broken zstandard" in found.detail


def test_members_and_frames_in_a_row(tmp_path):
    parts = [line("one"), line("two")]
    packed = b"".join(gzip.compress(part) for part in parts)
    assert [r.text for r in read(write(tmp_path, "a.jsonl.gz", packed))] == ["one", "two"]
    packed = b"".join(zstandard.compress(part) for part in parts)
    assert [r.text for r in read(write(tmp_path, "a.jsonl.zst", packed))] == ["one", "two"]


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.txt.zst", "bomb.txt"])
def test_a_bomb_is_cut_at_the_cap(tmp_path, name):
    data = bytes(30 << 20)
    packed = {"gz": zlib.compress(data, wbits=31), "zst": zstandard.compress(data), "txt": data}[
        name[-3:].strip(".")
    ]
    cap = 5 << 20
    (found,) = read(write(tmp_path, name, packed, "text"), max_file_bytes=cap, max_record_bytes=1000)
    assert found.rule == "file.too_long" and str(cap) in found.detail
    assert found.length == (len(data) if name == "bomb.txt" else cap)


def test_whole_files(tmp_path):
    (found,) = read(write(tmp_path, "a.txt", "naïve".encode(), "text"))
    assert (found.text, found.length) == ("naïve", 6)
    (found,) = read(write(tmp_path, "a.txt", b"caf\xe9", "text"))
    assert (found.rule, found.length) == ("encoding", 4)
    (found,) = read(write(tmp_path, "a.html", b'<meta charset="latin-1">caf\xe9', "html"))
    assert found.text.endswith("café") and found.media_type == "text/html"
    (found,) = read(write(tmp_path, "METADATA", b"Name: x\n\n# Title\n", "metadata"))
    assert found.text == "# Title\n"
    (found,) = read(write(tmp_path, "a.py", b"def f(:", "python"))
    assert found.rule == "python.syntax"
    (found,) = read(write(tmp_path, "a.png", b"\x89PNG", "unknown"))
    assert found.rule == "file.format"
    (found,) = read(write(tmp_path, "long.txt", b"x" * 100, "text"), max_record_bytes=10)
    assert (found.rule, found.length) == ("record.too_long", 100)


def test_a_changed_or_absent_file_is_refused_by_name(tmp_path):
    file = write(tmp_path, "a.jsonl", line("one"))
    with pytest.raises(SourceError, match=r"a\.jsonl has changed"):
        read(file._replace(version="1"))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(SourceError, match=r"a\.jsonl cannot be read: No such file"):
        read(file)


def test_formats_by_suffix():
    names = [
        "a.jsonl",
        "a.JSONL.gz",
        "a.ndjson.zst",
        "a.txt",
        "README",
        "a.md",
        "a.htm",
        "a.py",
        "a.png",
        "d.x/a",
    ]
    expected = ["jsonl", "jsonl", "jsonl", "text", "text", "markdown", "html", "python", "unknown", "text"]
    assert [format_of(name) for name in names] == expected


PIECES = st.sampled_from(
    [
        b"\n",
        b" ",
        b'{"text": "a"}',
        b'{"text": 1}',
        b"[]",
        b"\xff",
        b"\xef\xbb\xbf",
        b"{",
        b"x" * 50,
        b"\r\n",
        b"\0",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=30),
    packed=st.booleans(),
    cut=st.integers(0, 40),
    cap=st.integers(1, 400),
)
def test_ranges_always_cover_the_file(tmp_path_factory, pieces, packed, cut, cap):
    """read_records asserts the cover itself; here any file at all passes it, and no record is doubled."""
    data = b"".join(pieces)
    stored = gzip.compress(data)[: -cut or None] if packed else data
    name = "a.jsonl.gz" if packed else "a.jsonl"
    file = write(tmp_path_factory.getbasetemp(), name, stored)
    records = read(file, max_record_bytes=40, max_file_bytes=cap)
    ends = [record.offset + record.length for record in records]
    assert [record.offset for record in records] == [0, *ends[:-1]][: len(records)]
    if not packed:
        assert sum(record.length for record in records) == len(data)
