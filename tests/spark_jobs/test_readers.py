"""Readers: fields, metadata, places, damage anywhere, splits, files that are not what was listed, memory."""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
import os
import random
import subprocess
import sys
import zlib
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.config.sources import IngestConfig
from spark_jobs.readers import compression, splits
from spark_jobs.readers.encoding import decode
from spark_jobs.readers.fields import Fields
from spark_jobs.readers.listing import UNREADABLE, format_of
from spark_jobs.readers.records import Split, read_records
from spark_jobs.readers.storage import ReadError, Stored
from tests.spark_jobs.files import check_cover, fates, read, read_split, write
from tests.spark_jobs.test_bad_input import PAGES, gz, line, page, table, warc_record, zst

PACKS = {"": bytes, ".gz": gz, ".zst": zst, ".xz": lzma.compress, ".bz2": bz2.compress}


def lines(count, size=300):
    draw = random.Random(count)
    return [line(draw.randbytes(size // 2).hex(), id=number) for number in range(count)]


def test_formats_by_suffix():
    expected = {
        "jsonl": ["a.jsonl", "a.JSONL.gz", "a.ndjson.zst", "a.json.xz"],
        "text": ["a.txt", "README", "d.x/a"],
        "markdown": ["a.md.bz2"],
        "html": ["a.htm"],
        "python": ["a.py"],
        "warc": ["a.warc.gz", "a.warc.wet.gz"],
        "parquet": ["a.parquet"],
        "csv": ["a.csv"],
        "tsv": ["a.tsv"],
        "unknown": ["a.png"],
    }
    assert {
        kind: [name for name in names if format_of(name) == kind] for kind, names in expected.items()
    } == expected


# ---------------------------------------------------------------- what a record holds
def test_fields_are_mapped_and_all_others_kept_as_canonical_json(tmp_path):
    fields = Fields("body", "key", "link", "day", "rights")
    row = {
        "body": "a",
        "key": 7,
        "link": "u",
        "day": "2024",
        "rights": ["MIT"],
        "z": {"b": 1.50, "a": [None, "é"]},
    }
    row |= {"text": 1, "n": 2**70, "x": float("nan"), "h": "\ud800", "y": float("inf")}
    files = [write(tmp_path, "a.jsonl", json.dumps(row).encode())]
    plain = {name: value for name, value in row.items() if name not in "nxhy"}
    files.append(write(tmp_path, "plain.jsonl", json.dumps(plain).encode()))
    files.append(
        write(
            tmp_path,
            "a.parquet",
            table(["a"], body=["a"], key=[7], link=["u"], day=["2024"], rights=["MIT"], z=[1.5]),
        )
    )
    files.append(write(tmp_path, "a.csv", b"body,key,link,day,rights,z\na,7,u,2024,MIT,1.5\n"))
    found = [read(file, fields)[-1].document for file in files]
    for document, rights in zip(found, ['["MIT"]', '["MIT"]', "MIT", "MIT"], strict=True):
        assert document[:5] == (b"a", "u", "7", "2024", rights)
    assert found[0].metadata == (
        '{"h":"\\ud800","n":1180591620717411303424,"text":1,"x":"NaN","y":"Infinity",'
        '"z":{"a":[null,"\\u00e9"],"b":1.5}}'
    )
    assert found[1].metadata == '{"text":1,"z":{"a":[null,"é"],"b":1.5}}'
    assert [document.metadata for document in found[2:]] == ['{"text":"a","z":1.5}', '{"z":"1.5"}']


def test_columns_of_any_type_become_metadata(tmp_path):
    import datetime
    import decimal

    day = datetime.date(2024, 1, 2)
    columns = {
        "bytes": [b"\xff"],
        "day": [day],
        "time": [datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)],
        "money": [decimal.Decimal("1.50")],
        "nan": [float("nan")],
        "deep": [[{"a": None, "b": [day]}]],
        "none": [None],
    }
    (record,) = read(write(tmp_path, "a.parquet", table(["a"], **columns)))
    assert json.loads(record.document.metadata) == {
        "bytes": "/w==",
        "day": "2024-01-02",
        "time": "2024-01-02T00:00:00+00:00",
        "money": "1.50",
        "nan": "nan",
        "deep": [{"a": None, "b": ["2024-01-02"]}],
        "none": None,
    }


def test_a_web_record_keeps_its_headers(tmp_path):
    data = warc_record(
        "response",
        b"a",
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nX-Robots-Tag: noai",
        WARC_Target_URI="https://example.org/",
        WARC_Date="2024-01-02T03:04:05Z",
        WARC_Record_ID="<urn:uuid:1>",
    )
    (record,) = read(write(tmp_path, "a.warc.gz", gz(data)))
    found = record.document
    assert (found.url, found.date, found.external_id, found.media_type) == (
        "https://example.org/",
        "2024-01-02T03:04:05Z",
        "<urn:uuid:1>",
        "text/html",
    )
    metadata = json.loads(found.metadata)
    assert metadata["http_status"] == 404 and metadata["http_headers"]["x-robots-tag"] == "noai"


@pytest.mark.parametrize("packed", [False, True])
def test_a_web_archive_with_its_own_dictionary(tmp_path, packed):
    """As the IIPC has it: a skippable frame holds the dictionary, itself packed or not."""
    pages = [page(f"page {number}") for number in range(300)]
    dictionary = zstandard.train_dictionary(2000, pages)
    held = zst(dictionary.as_bytes()) if packed else dictionary.as_bytes()
    head = b"\x5d\x2a\x4d\x18" + len(held).to_bytes(4, "little") + held
    frames = [zstandard.ZstdCompressor(dict_data=dictionary).compress(found) for found in pages]
    file = write(tmp_path, "a.warc.zst", head + b"".join(frames))
    assert fates(read(file)) == [f"page {number}" for number in range(300)]
    assert read_split(file, file.size // 5) == read(file)


def test_the_found_encoding_is_recorded(tmp_path):
    samples = {
        "cp1252": "Über die Brücke gingen „viele“ Männer",
        "cp1251": "Это русский текст, который нужно узнать",
        "shift_jis": "これは日本語の文章です。漢字も含まれています。",
    }
    for encoding, text in samples.items():
        (record,) = read(write(tmp_path, "a.txt", text.encode(encoding)))
        assert record.document.text.decode() == text and json.loads(record.document.metadata) == {
            "encoding": encoding
        }
    (record,) = read(write(tmp_path, "a.txt", "naïve café, déjà vu ".encode() * 9 + b"\xff"))
    assert json.loads(record.document.metadata) == {"replaced": 1}
    assert decode(b"\x1b$B%F%9%H\x1b(B", "iso-2022-jp").utf8.decode() == "テスト"


def test_sources_of_python(tmp_path):
    (record,) = read(
        write(tmp_path, "METADATA", b"Name: x\nLicense-Expression: MIT\n\n# Title\n", "metadata")
    )
    assert (record.document.text, record.document.licence) == (b"# Title\n", "MIT")
    (record,) = read(write(tmp_path, "a.py", b'"""Top."""\ndef f():\n    """Inner."""\n'))
    assert record.document.text.decode() == "Top.\n\nf\nInner."


# ---------------------------------------------------------------- where a record stands
@pytest.mark.parametrize("suffix", PACKS)
def test_a_place_leads_back_to_the_record(tmp_path, suffix):
    pieces = [b"".join(lines(20)), b"".join(lines(3000))]
    file = write(tmp_path, f"a.jsonl{suffix}", b"".join(map(PACKS[suffix], pieces)))
    records = read(file)
    check_cover(file, records, sum(map(len, pieces)))
    with Stored(file) as stored:
        codec = compression.codec_of(stored)
        for record in records[:: len(records) // 7]:
            events = iter(compression.decoded(stored, codec, record.place.member or 0))
            skipped = record.place.offset
            data = b""
            while len(data) < skipped + record.length:
                data += next(events).data
            found = data[skipped : skipped + record.length]
            assert json.loads(found)["text"] == record.document.text.decode()
            place = (
                f"test\0{file.path}\0"
                + (f"{record.place.member}:{skipped}" if codec else f"{skipped}")
                + "\0"
            )
            name = hashlib.sha256(place.encode() + hashlib.sha256(found).digest()).hexdigest()[:32]
            assert name == record.id


def test_ids_follow_a_source_that_moves(tmp_path):
    data = b"".join(lines(3))
    (tmp_path / "other").mkdir()
    one, other = read(write(tmp_path, "a.jsonl", data)), read(write(tmp_path / "other", "a.jsonl", data))
    assert [record.id for record in one] == [record.id for record in other]
    assert {record.id for record in one}.isdisjoint(r.id for r in read(write(tmp_path, "b.jsonl", data)))


# ---------------------------------------------------------------- damage anywhere
@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz", ".bz2"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_anywhere_loses_no_more_than_the_members_it_is_in(tmp_path_factory, suffix, data):
    members = [lines(count, 40) for count in (3, 5, 4, 6)]
    packed = [PACKS[suffix](b"".join(found)) for found in members]
    whole = b"".join(packed)
    at = data.draw(st.integers(0, len(whole) - 1))
    size = data.draw(st.integers(0, 40))
    damaged = whole[:at] + data.draw(st.binary(max_size=40)) + whole[at + size :]
    file = write(tmp_path_factory.getbasetemp(), f"a.jsonl{suffix}", damaged)
    records = read(file)
    check_cover(file, records, sum(record.length for record in records))
    ends = [sum(map(len, packed[: n + 1])) for n in range(len(packed))]
    found = fates(records)
    for member, end, size_ in zip(members, ends, map(len, packed), strict=True):
        if end <= at or end - size_ >= at + size:
            texts = [json.loads(row)["text"] for row in member]
            assert any(found[n : n + len(texts)] == texts for n in range(len(found)))
    assert read_split(file, 61) == records


def test_bzip2_loses_one_block_only(tmp_path):
    rows = lines(4000, 800)  # 3.3 MB in one stream: four blocks
    packed = bz2.compress(b"".join(rows))
    cut = bytearray(packed)
    cut[len(cut) * 3 // 8] ^= 1
    file = write(tmp_path, "a.jsonl.bz2", bytes(cut))
    records = read(file)
    check_cover(
        file,
        records,
        len(b"".join(rows)) - 900_000 + sum(0 for _ in ()) if False else sum(r.length for r in records),
    )
    kept = [record.document.text.decode() for record in records if not record.rule]
    texts = [json.loads(row)["text"] for row in rows]
    assert len(texts) * 0.7 < len(kept) < len(texts) * 0.8 and set(kept) < set(texts)
    assert kept[:900] == texts[:900] and kept[-1500:] == texts[-1500:]
    assert [r.rule for r in records if r.rule] == ["file.broken", "jsonl.syntax"]


def test_a_flipped_bit_anywhere_in_parquet(tmp_path):
    """Its footer, too, of which some bits make Arrow abort the process that asks for metadata of columns."""
    data = table(["a1", "a2"], ["b1"], ["c1", "c2"], n=[1, 2])
    for at in range(0, len(data) * 8, 5):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        file = write(tmp_path, "a.parquet", bytes(broken))
        records = read(file)
        check_cover(file, records, sum(record.length for record in records))
        assert read_split(file, len(data) // 3) == records


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz"])
def test_a_cut_file_keeps_every_line_before_the_cut(tmp_path, suffix):
    rows = lines(5000)
    packed = PACKS[suffix](b"".join(rows))
    file = write(tmp_path, f"a.jsonl{suffix}", packed[: len(packed) // 2])
    *kept, cut = read(file)
    assert 2000 < len(kept) < 3000 and fates(kept) == [json.loads(row)["text"] for row in rows[: len(kept)]]
    assert cut.rule == "file.broken" and f"cut short: compressed bytes 0..{file.size}" in cut.detail


def test_a_long_member_streams_before_its_checksum_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "VERIFIED", 10_000)
    rows = lines(200)
    packed = bytearray(gz(b"".join(rows)))
    packed[-6] ^= 1
    *kept, last = read(write(tmp_path, "a.jsonl.gz", bytes(packed)))
    assert fates(kept) == [json.loads(row)["text"] for row in rows[: len(kept)]] and len(kept) > 100
    assert last.rule == "file.broken" and "bytes were read unverified" in last.detail


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
        b'"',
        b",",
        b"text",
        *PAGES[:1],
        b"WARC/1.0\r\n",
        b"\r\n\r\n",
        b"Content-Length: 9\r\n\r\n",
        b"\xff\xfe",
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=30),
    kind=st.sampled_from(["jsonl", "warc", "csv", "txt", "html", "parquet", "py"]),
    suffix=st.sampled_from(["", ".gz", ".zst", ".bz2", ".xz"]),
    cut=st.integers(0, 40),
    cap=st.integers(1, 900),
    size=st.integers(1, 200),
)
def test_any_bytes_are_accounted_for(tmp_path_factory, pieces, kind, suffix, cut, cap, size):
    stored = PACKS[suffix](b"".join(pieces))
    file = write(tmp_path_factory.getbasetemp(), f"any.{kind}{suffix}", stored[: -cut or None])
    limits = {"max_record_bytes": 40, "max_file_bytes": cap}
    records = read(file, **limits)
    plain = not suffix and kind != "parquet"
    check_cover(file, records, file.size if plain else sum(record.length for record in records))
    assert read_split(file, size, **limits) == records


# ---------------------------------------------------------------- splits
@settings(max_examples=60, deadline=None)
@given(
    suffix=st.sampled_from(["", ".gz", ".zst", ".bz2"]),
    kind=st.sampled_from(["jsonl", "warc"]),
    cuts=st.lists(st.integers(1, 20_000), max_size=12),
    size=st.integers(1, 20_000),
)
def test_however_a_file_is_split_the_records_are_the_same(tmp_path_factory, suffix, kind, cuts, size):
    """Members that end anywhere, in a line or a page, too."""
    whole = {"jsonl": lambda: lines(60), "warc": lambda: [page(row.hex()[:250]) for row in lines(30)]}[kind]()
    data = b"".join(whole)
    at = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    packed = b"".join(PACKS[suffix](data[a:b]) for a, b in pairwise(at))
    file = write(tmp_path_factory.getbasetemp(), f"split.{kind}{suffix}", packed)
    records = read(file)
    assert len(records) == len(whole) and not any(record.rule for record in records)
    check_cover(file, records, len(data))
    size = max(size, file.size // 40)
    assert read_split(file, size) == records


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.warc", "a.warc.gz", "a.parquet"]
)
def test_formats_that_split_are_split(tmp_path, name):
    rows = lines(4000, 800)
    if ".warc" in name:
        rows = [page(str(number), body=row) for number, row in enumerate(rows)]
    data = b"".join(map(gz, rows)) if name == "a.warc.gz" else b"".join(rows)
    if name == "a.parquet":
        data = table(*([json.loads(row)["text"] for row in rows[n : n + 500]] for n in range(0, 4000, 500)))
    elif ".jsonl." in name:
        step = len(rows) if name.endswith("bz2") else 100
        data = b"".join(PACKS[name[7:]](b"".join(rows[n : n + step])) for n in range(0, len(rows), step))
    file = write(tmp_path, name, data)
    found = splits.plan([file], file.size // 4 + 1, IngestConfig())
    assert len(found) == 4
    assert [r for split in found for r in read_records(split, Fields(), IngestConfig())] == read(file)


def test_an_archive_in_an_archive_is_not_taken_for_its_host(tmp_path):
    """Packed without compression, inner members stand in the outer one as they are, and all decode."""
    inner = b"".join(gz(page(f"inner {number}")) for number in range(200))
    pack = zlib.compressobj(0, wbits=31)
    outer = pack.compress(page("x", "application/gzip", inner)) + pack.flush()
    file = write(tmp_path, "a.warc.gz", gz(PAGES[0]) + outer + gz(PAGES[1]))
    config = IngestConfig()
    assert splits.locate(config, splits.Cut(file, 5000, 9000)), "nothing in it looks like a member: no test"
    assert splits.plan([file], 4000, config) == [Split(file)]
    assert fates(read(file)) == ["a", "!warc.media_type", "b"]


def test_a_file_that_may_pass_the_cap_has_one_reader(tmp_path):
    rows = b"".join(gz(row) for row in lines(50))
    file = write(tmp_path, "a.jsonl.gz", rows)
    decoded = sum(map(len, lines(50)))
    assert len(splits.plan([file], 2000, IngestConfig(max_file_bytes=decoded))) > 3
    assert splits.plan([file], 2000, IngestConfig(max_file_bytes=decoded - 1)) == [Split(file)]


# ---------------------------------------------------------------- files that are not what was listed
def test_a_changed_or_absent_file_is_a_quarantined_row(tmp_path):
    file = write(tmp_path, "a.jsonl", line("one"))
    for found in (file._replace(version="1"), file._replace(size=3), file._replace(uri=f"{file.uri}.gone")):
        (record,) = read(found)
        assert (record.rule, record.length, record.status) == ("file.changed", 0, "quarantined")
    (record,) = read(file._replace(size=0, version=f"{UNREADABLE}Permission denied"))
    assert (record.rule, record.detail) == ("file.unreadable", "Permission denied")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_that_shrinks_while_it_is_read(tmp_path, name, monkeypatch):
    monkeypatch.setattr("spark_jobs.readers.storage.READ", 1 << 14)
    monkeypatch.setattr(compression, "VERIFIED", 1 << 12)
    rows = lines(2000)
    data = {"a.jsonl": b"".join(rows), "a.jsonl.gz": gz(b"".join(rows))}.get(name) or table(
        *([json.loads(row)["text"] for row in rows[n : n + 100]] for n in range(0, 2000, 100))
    )
    file = write(tmp_path, name, data)
    records = []
    for record in read_records(Split(file), Fields(), IngestConfig()):
        records.append(record)
        if len(records) == 5:
            os.truncate(tmp_path / name, file.size // 2)
    changed = [record for record in records if record.rule]
    assert changed and {record.rule for record in changed} == {"file.changed"}
    check_cover(file, records, file.size if name == "a.jsonl" else sum(record.length for record in records))
    assert 5 <= len(records) - len(changed) < 2000


def test_a_file_that_is_appended_to_while_it_is_read(tmp_path):
    file = write(tmp_path, "a.jsonl", b"".join(lines(2000)))
    records = []
    for record in read_records(Split(file), Fields(), IngestConfig()):
        if not records:
            with open(tmp_path / "a.jsonl", "ab") as more:
                more.write(line("more"))
        records.append(record)
    assert [record.rule for record in records if record.rule] == ["file.changed"] and len(records) == 2001


def test_what_cannot_be_opened_as_a_file(tmp_path):
    file = write(tmp_path, "a.jsonl", b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, why in {"pipe": "no regular file", "loop": "symbolic links", ".": "no regular file"}.items():
        (record,) = read(file._replace(uri=str(tmp_path / name)))
        assert record.rule == "file.unreadable" and why in record.detail


def test_a_machine_that_lacks_something_is_no_fault_of_the_file(tmp_path, monkeypatch):
    from spark_jobs.readers.storage import StorageError

    def refuse(*_):
        raise OSError(24, "Too many open files")

    file = write(tmp_path, "a.jsonl", line("one"))
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(StorageError, match="Too many open files"):
        read(file)


def test_a_small_file_read_whole(tmp_path):
    assert compression.read_whole(write(tmp_path, "a.txt.xz", lzma.compress(b"abc"))) == b"abc"
    with pytest.raises(ReadError, match="cut short"):
        compression.read_whole(write(tmp_path, "a.txt.gz", gz(b"abc")[:-9]))


# ---------------------------------------------------------------- memory and speed
MEASURE = """
import resource, sys
from bloomery.config.sources import IngestConfig
from spark_jobs import ingest
from spark_jobs.readers.listing import File
from spark_jobs.readers.records import Split, Fields, read_records
import pyarrow, orjson, fastwarc.warc, zstandard, resiliparse.parse.encoding, pyarrow.parquet
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 1024
before = peak()
file = File(*eval(sys.argv[1]))
rows = [dict(zip([c.split()[0] for c in ingest.SPLITS.split(", ")], ingest._split_row(Split(file))))]
batch = pyarrow.RecordBatch.from_pylist(rows)
for found in ingest._read({"test": Fields()}, IngestConfig(), [batch]):
    kept = sum(value == "kept" for value in found.column("status").to_pylist())
    print("rows", kept)
print("peak", peak() - before)
"""


@pytest.mark.parametrize("sentence", ["A sentence of a very long document. ", "这是一个很长的句子。"])
@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.txt", "gb18030.txt", "a.csv", "a.warc.gz", "a.parquet"]
)
def test_a_document_of_50_mb_stays_below_300_mb(tmp_path, name, sentence):
    text = sentence * ((50 << 20) // len(sentence.encode()))
    made = {
        "a.jsonl": lambda: json.dumps({"text": text}, ensure_ascii=False).encode(),
        "a.jsonl.gz": lambda: gz(line(text)),
        "a.txt": text.encode,
        "gb18030.txt": lambda: text.encode("gb18030"),
        "a.csv": lambda: f"text\n{text}".encode(),
        "a.warc.gz": lambda: gz(page("x", "text/html", text.encode())),
        "a.parquet": lambda: table([text]),
    }
    file = write(tmp_path, name, made[name]())
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEASURE, repr(tuple(file))], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = dict(found.split() for found in done.stdout.splitlines() if found != "rows 0")
    assert said["rows"] == "1" and float(said["peak"]) < 300, said
