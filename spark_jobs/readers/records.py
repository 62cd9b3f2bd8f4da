"""Records of a file: ranges of its decoded bytes, each with a text or with the rule that quarantined it.

    stored bytes -> members -> decoded bytes and gaps -> ranges -> documents -> records
    (storage)       (compression)                       (framing)  (fields, documents, delimited, webarchive)

    decoded bytes   {"text": "a"}\\n  \\n {"text": 1}\\n  {"te          (the file is cut here)
    records         [---- kept ----][- jsonl.text --][ file.broken ]

The ranges follow one another without a gap, and their lengths add up to the file's decoded size, so that no
byte is lost in silence. Of a Parquet file the unit is the row (columnar). A huge file is read in splits: the
records are the same however it is split.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from bloomery.config.sources import IngestConfig
from spark_jobs.readers import columnar, delimited, documents, framing, webarchive
from spark_jobs.readers.compression import Chunk, Codec, Gap, Place, codec_of, decoded, head
from spark_jobs.readers.encoding import by_mark
from spark_jobs.readers.fields import Document, Fields, Read, jsonl, parsed
from spark_jobs.readers.framing import Range
from spark_jobs.readers.listing import File
from spark_jobs.readers.storage import ReadError, Stored

SKIPPED = {"file.empty", "jsonl.blank", "csv.blank", "csv.header", "warc.type", "warc.media_type"}
"""Rules of ranges that are meant to hold no document: no quarantine."""


class Split(NamedTuple):
    """A part of a file, from a place where a record begins up to one where another does."""

    file: File
    start: Place | None = None
    """None: from the file's begin."""
    stop: Place | None = None
    """None: to the file's end."""


class Record(NamedTuple):
    """A range of a file's decoded bytes."""

    id: str
    """Follows from where the record stands and what it holds, and from nothing else."""
    place: Place
    length: int
    document: Document | None
    rule: str = ""
    """Why there is no document."""
    detail: str = ""

    @property
    def status(self) -> str:
        """kept, skipped or quarantined."""
        if not self.rule:
            return "kept"
        return "skipped" if self.rule in SKIPPED else "quarantined"


def read_records(split: Split, fields: Fields, config: IngestConfig) -> Iterator[Record]:
    """Every record, skipped and quarantined range of a split, in order.

    A file that cannot be read, or is no longer what was listed, is a quarantined range, too.

    Raises:
        StorageError: the place of the file does not answer.
        AssertionError: ranges that do not cover what was decoded: a bug of a reader.
    """
    file, end, changed = split.file, split.start or Place(None, 0), False
    try:
        with Stored(file) as stored:
            for found, document in _read(stored, split, fields, config):
                name = record_id(file, found.place, found.data or found.rule.encode())
                yield Record(name, found.place, found.length, document, found.rule, found.detail)
                end = found.place._replace(offset=found.place.offset + found.length)
                changed |= found.rule == "file.changed"
            if not changed:
                stored.check_unchanged()
    except ReadError as error:
        yield Record(record_id(file, end, error.rule.encode()), end, 0, None, error.rule, error.detail)


def record_id(file: File, place: Place, held: bytes) -> str:
    """The id of a record that holds bytes of the SHA-256 `held`: 32 hexadecimal digits."""
    at = place.offset if place.member is None else f"{place.member}:{place.offset}"
    named = f"{file.source}\0{file.path}\0{at}\0".encode()
    return hashlib.sha256(named + held).hexdigest()[:32]


def ranges(stored: Stored, events: framing.Events, limit: int) -> Iterator[Range]:
    """The ranges of a file in a format that is read by ranges, from where the events begin."""
    if stored.file.format == "jsonl":
        return framing.lines(events, limit, "\n".encode(marked_encoding(stored)))
    if stored.file.format == "warc":
        return framing.warc(events, limit)
    return framing.whole(events, limit)


def marked_encoding(stored: Stored) -> str:
    """The encoding that a byte order mark at the file's begin names; without one it is UTF-8."""
    marked = by_mark(head(stored, codec_of(stored), 4))
    return marked[0] if marked else "utf-8"


def events_from(stored: Stored, codec: Codec | None, start: Place | None) -> framing.Events:
    """Decoded bytes and gaps from a place on."""
    if start is None or codec is None:
        return decoded(stored, codec, start.offset if start else 0)
    return _behind(decoded(stored, codec, start.stored), start)


def _behind(events: framing.Events, start: Place) -> Iterator[Chunk | Gap]:
    for event in events:
        missing = start.offset - event.place.offset if event.place.member == start.member else 0
        if isinstance(event, Chunk) and missing > 0:
            if missing < len(event.data):
                yield Chunk(start, event.data[missing:])
        else:
            yield event


def _read(stored: Stored, split: Split, fields: Fields, config: IngestConfig) -> Read:
    file, limit = stored.file, config.max_record_bytes
    if file.size == 0:
        yield Range(Place(None, 0), 0, None, "file.empty", "no bytes"), None
        return
    if file.format == "parquet" and not file.compression:
        start, stop = split.start, split.stop
        yield from columnar.rows(
            stored, fields, limit, start.offset if start else 0, stop.offset if stop else None
        )
        return
    codec = codec_of(stored)
    ledger = _Ledger(split, events_from(stored, codec, split.start), config.max_file_bytes)
    for found, document in _documents(stored, ledger, fields, limit):
        if split.stop and found.place >= split.stop:
            assert found.place == split.stop, f"{file.uri}: no record begins at {split.stop}, a split's end"
            return
        ledger.cover(found)
        yield found, document
    ledger.close()
    if not ledger.ranges:
        yield Range(Place(0, 0), 0, None, "file.empty", "it decodes to no bytes"), None


def _documents(stored: Stored, events: framing.Events, fields: Fields, limit: int) -> Read:
    kind = stored.file.format
    if kind in _DELIMITERS:
        sample = head(stored, codec_of(stored), delimited.HEAD)
        return delimited.rows(events, sample, _DELIMITERS[kind], fields, limit)
    parsers: dict[str, Callable[[bytes], Document]] = {
        "jsonl": partial(jsonl, fields=fields, encoding=marked_encoding(stored) if kind == "jsonl" else ""),
        "warc": partial(webarchive.document, limit=limit),
        "text": documents.text,
        "markdown": documents.markdown,
        "html": documents.html,
        "metadata": documents.package_metadata,
        "python": documents.python,
    }
    return parsed(ranges(stored, events, limit), parsers.get(kind, documents.unknown), limit)


_DELIMITERS = {"csv": b",", "tsv": b"\t"}


class _Ledger:
    """Passes on what was decoded, up to the cap, and checks that the ranges made of it cover it."""

    def __init__(self, split: Split, events: framing.Events, cap: int) -> None:
        self.file, self.events, self.cap = split.file, events, cap
        self.first = split.start.offset if split.start else 0
        self.decoded = self.covered = self.ranges = 0
        self._begins: deque[tuple[int | None, int]] = deque()  # (member, decoded bytes before its first)

    def __iter__(self) -> Iterator[Chunk | Gap]:
        for event in self.events:
            if not self._begins or self._begins[-1][0] != event.place.member:
                self._begins.append((event.place.member, self.decoded - event.place.offset))
            size = event.length if isinstance(event, Gap) else len(event.data)
            room = self.cap - self.decoded
            if size > room:
                yield from self._cut(event, room)
                return
            self.decoded += size
            yield event

    def _cut(self, event: Chunk | Gap, room: int) -> Iterator[Chunk | Gap]:
        if room:
            yield (
                event._replace(length=room)
                if isinstance(event, Gap)
                else event._replace(data=event.data[:room])
            )
        # Of a file that is not compressed it is known how much lies beyond the cap.
        end = event.place._replace(offset=event.place.offset + room)
        rest = self.file.size - end.offset if end.member is None else 0
        self.decoded += room + rest
        detail = f"the file decodes to more than max_file_bytes {self.cap}"
        yield Gap(end, rest, "file.too_long", detail)

    def cover(self, found: Range) -> None:
        """A range that was made: it must begin where the one before it ended."""
        while len(self._begins) > 1 and self._begins[0][0] != found.place.member:
            self._begins.popleft()
        begin = self._begins[0][1] + found.place.offset
        assert begin == self.covered, f"{self.file.uri}: a range begins at {begin}, expected {self.covered}"
        self.covered += found.length
        self.ranges += 1

    def close(self) -> None:
        """The file's end: all that was decoded must be covered."""
        uri = self.file.uri
        assert self.covered == self.decoded, f"{uri}: {self.covered} bytes in records, {self.decoded} decoded"
        size = self.file.size - self.first
        assert self.file.compression or self.covered == size, f"{uri}: {self.covered} bytes read of {size}"
