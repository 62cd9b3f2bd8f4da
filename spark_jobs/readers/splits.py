"""Where a huge file is split, so that several tasks read it and find the same records as one would.

    stored bytes  |........:........:........:........|      cuts, every so many bytes
    candidates          s1        s2        s3               first record that seems to begin behind each
    proof         |---->s1------->s2------->s3------->       a reader from each comes to exactly the next

A member or a record is found by what it looks like, and other data may look the same: an archive may hold
archives. So each candidate is proven by the split before it, which ends exactly there; by induction from the
file's begin all are true. A file that fails the proof, or is of a format that does not split, has one reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from bloomery.config.sources import IngestConfig
from spark_jobs.readers import columnar
from spark_jobs.readers.compression import Place, codec_of, decoded, first_member
from spark_jobs.readers.listing import File
from spark_jobs.readers.records import Split, events_from, marked_encoding, ranges
from spark_jobs.readers.storage import ReadError, Stored

ENOUGH = 1 << 20
"""Decoded bytes that make a member credible; the proof comes later."""
FORMATS = {"jsonl", "warc", "parquet"}
COMPRESSIONS = {"", ".gz", ".zst", ".bz2"}


class Cut(NamedTuple):
    """A stretch of stored bytes, in which a split may begin."""

    file: File
    begin: int
    end: int


Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function once an item, maybe on many machines, and gives the results in the items' order."""


def plan(files: Sequence[File], size: int, config: IngestConfig, run: Run = map) -> list[Split]:
    """Splits of all files: those of more than `size` bytes are cut, where their format allows it."""
    cuts = [cut for file in files for cut in _cuts(file, size, config)]
    starts: dict[File, list[Place]] = {}
    for cut, place in zip(cuts, run(partial(locate, config), cuts), strict=True):
        if place:
            starts.setdefault(cut.file, []).append(place)
    pieces = {file: _pieces(file, found) for file, found in starts.items()}
    doubtful = [piece for found in pieces.values() for piece in found if _needs_proof(piece)]
    sizes: dict[File, list[int | None]] = {}
    for piece, size_ in zip(doubtful, run(partial(prove, config), doubtful), strict=True):
        sizes.setdefault(piece.file, []).append(size_)
    return [split for file in files for split in _chosen(file, pieces, sizes, config.max_file_bytes)]


def _cuts(file: File, size: int, config: IngestConfig) -> Iterator[Cut]:
    if file.format in FORMATS and file.compression in COMPRESSIONS and file.size <= config.max_file_bytes:
        for begin in range(size, file.size, size):
            yield Cut(file, begin, begin + size)


def _pieces(file: File, starts: list[Place]) -> list[Split]:
    return [Split(file, a, b) for a, b in zip([None, *starts], [*starts, None], strict=True)]


def _needs_proof(piece: Split) -> bool:
    """A line end and a row group are what they seem to be."""
    plain = not piece.file.compression
    return not (piece.file.format == "parquet" or (plain and piece.file.format == "jsonl"))


def _chosen(
    file: File, pieces: dict[File, list[Split]], sizes: dict[File, list[int | None]], cap: int
) -> list[Split]:
    found = sizes.get(file, [])
    known = [size for size in found if size is not None]
    proven = len(known) == len(found) and sum(known) <= cap
    return pieces[file] if proven and file in pieces else [Split(file)]


def locate(config: IngestConfig, cut: Cut) -> Place | None:
    """Where the first record seems to begin in a stretch; none when none does, or the file cannot be read."""
    try:
        with Stored(cut.file) as stored:
            if cut.file.format == "parquet":
                row = columnar.group_at(stored, cut.begin, cut.end)
                return None if row is None else Place(None, row)
            place = _first_record(stored, cut, config.max_record_bytes)
    except ReadError:
        return None
    return place if place and place.stored < cut.end else None


def _first_record(stored: Stored, cut: Cut, limit: int) -> Place | None:
    lines = cut.file.format == "jsonl"
    if lines and marked_encoding(stored) != "utf-8":
        return None
    codec = codec_of(stored)
    begin = first_member(stored, codec, cut.begin, cut.end, ENOUGH) if codec else cut.begin
    if begin is None:
        return None
    found = ranges(stored, decoded(stored, codec, begin), limit)
    if lines:
        next(found, None)  # a line that may have begun before
        return next((line.place for line in found), None)
    return next((record.place for record in found if not record.rule), None)


def prove(config: IngestConfig, split: Split) -> int | None:
    """Decoded bytes of a split when a reader from its start comes to its stop; none when it does not."""
    try:
        with Stored(split.file) as stored:
            size = 0
            events = events_from(stored, codec_of(stored), split.start)
            for found in ranges(stored, events, config.max_record_bytes):
                if split.stop and found.place >= split.stop:
                    return size if found.place == split.stop else None
                size += found.length
            return None if split.stop else size
    except ReadError:
        return None
