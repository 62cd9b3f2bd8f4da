"""Files as a snapshot lists them, what a reader makes of them, and the check that all of them must pass."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from bloomery.config.sources import IngestConfig
from spark_jobs.readers.fields import Fields
from spark_jobs.readers.listing import File, format_of
from spark_jobs.readers.records import Record, Split, read_records
from spark_jobs.readers.splits import plan


def write(folder: Path, name: str, data: bytes, kind: str | None = None) -> File:
    """A file of `data`, as a snapshot would list it."""
    path = folder / name
    path.write_bytes(data)
    stat = path.stat()
    return File("test", name, str(path), stat.st_size, str(stat.st_mtime_ns), kind or format_of(name))


def read(file: File, fields: Fields | None = None, **limits: int) -> list[Record]:
    """All records, by one reader."""
    return list(read_records(Split(file), fields or Fields(), IngestConfig(**limits)))


def read_split(file: File, size: int, **limits: int) -> list[Record]:
    """All records, by one reader a split of about `size` stored bytes."""
    config = IngestConfig(**limits)
    splits = plan([file], size, config)
    return [record for split in splits for record in read_records(split, Fields(), config)]


def fates(records: list[Record]) -> list[str]:
    """Text of each record that is kept, and !rule of each that is not."""
    return [f"!{record.rule}" if record.rule else record.document.text.decode() for record in records]


def check_cover(file: File, records: list[Record], size: int) -> None:
    """The ranges hold `size` decoded bytes without a gap, in order, and each has an id of its own."""
    assert records, "a file without a record vanishes from the ledger"
    assert len({record.id for record in records}) == len(records)
    assert sum(record.length for record in records) == size
    assert records[0].place.offset == 0
    for before, after in pairwise(records):
        end = before.place.offset + before.length
        if after.place.member == before.place.member:
            assert after.place.offset == end
        else:  # of what was read on, some stands in the member before
            assert after.place.member > before.place.member and after.place.offset <= end
    if not file.compression:
        assert all(record.place.member is None for record in records)
