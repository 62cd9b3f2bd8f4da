"""From decoded bytes to ranges, one a record: they follow one another without a gap, whatever the bytes hold.

    decoded   {"text": "a"}\n  \n {"text": 1}\n  {"te           (the member is broken here)
    ranges    [--- range 0 ----][-- range 1 --][- broken -]

Where a range begins follows from the bytes around it alone, so a reader that begins at any range finds the
same ones from there on. Nothing longer than the limit is held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spark_jobs.readers.compression import Chunk, Gap, Place

BLANK = b" \t\r\n\f\v"
WARC_HEAD = 1 << 20
"""Bytes: a longer header is none."""
WARC_VERSION = b"WARC/1."
CONTENT_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?$", re.I | re.M)


class Range(NamedTuple):
    """Decoded bytes that make up a record, or hold none."""

    place: Place
    length: int
    data: bytes | None = None
    """The bytes; none when they are longer than the limit, or when a rule says why they hold no record."""
    rule: str = ""
    detail: str = ""


Events = Iterable[Chunk | Gap]


def whole(events: Events, limit: int) -> Iterator[Range]:
    """The whole file as one range, quarantined when any of it is broken; nothing for no bytes."""
    parts: list[bytes] = []
    first: Place | None = None
    length, rule, details = 0, "", []
    for event in events:
        first = first or event.place
        if isinstance(event, Gap):
            length += event.length
            rule = rule or event.rule
            details.append(event.detail)
        else:
            length += len(event.data)
            parts.append(event.data)
        if length > limit or rule:
            parts.clear()
    if first:
        complete = length <= limit and not rule
        yield Range(first, length, _joined(parts) if complete else None, rule, "; ".join(details))


def _joined(parts: list[bytes]) -> bytes:
    """The parts as one; the list lets go of them, for two copies of a long record are one too many."""
    data = b"".join(parts)
    parts.clear()
    return data


def lines(events: Events, limit: int, newline: bytes = b"\n") -> Iterator[Range]:
    """A line that holds something, with the blank ones after it; blank ones at the start by themselves."""
    waiting: list[Range] = []  # the line before, until it is known whether a blank one follows
    spaces = BLANK if len(newline) == 1 else BLANK + b"\0"
    for line in physical_lines(events, limit, newline):
        blank = not line.rule and line.data is not None and not line.data.strip(spaces)
        if blank and not waiting:
            waiting.append(line._replace(data=None, rule="jsonl.blank", detail="blank lines"))
        elif blank and waiting[0].rule in {"", "jsonl.blank"}:
            waiting[0] = waiting[0]._replace(length=waiting[0].length + line.length)
        else:
            if waiting:
                yield waiting.pop()
            waiting.append(line)
    yield from waiting


def physical_lines(events: Events, limit: int, newline: bytes = b"\n") -> Iterator[Range]:
    """Every line with its line end. What a gap cuts short goes with the gap."""
    width = len(newline)
    begin: Place | None = None  # of the line that is not yet at its end
    parts: list[bytes] = []
    length = 0
    for event in events if width == 1 else _aligned(events, width):
        if isinstance(event, Gap):
            yield Range(begin or event.place, length + event.length, None, event.rule, event.detail)
            begin, length = None, 0
            parts.clear()
            continue
        (member, offset), data = event
        start = 0
        while start < len(data):
            end = data.find(newline, start)
            while end >= 0 and (length + end - start) % width:
                end = data.find(newline, end + 1)
            stop = end + width if end >= 0 else len(data)
            piece = data[start:stop]
            begin = begin or Place(member, offset + start)
            length, start = length + len(piece), stop
            if length <= limit:
                parts.append(piece)
            else:
                parts.clear()
            if end >= 0:
                yield Range(begin, length, _joined(parts) if length <= limit else None)
                begin, length = None, 0
    if begin:
        yield Range(begin, length, _joined(parts) if length <= limit else None)


def _aligned(events: Events, width: int) -> Iterator[Chunk | Gap]:
    """The same bytes, cut between units of `width` bytes."""
    rest: Chunk | None = None
    for event in events:
        if isinstance(event, Gap):
            if rest:
                yield rest
            rest = None
            yield event
            continue
        place, data = (rest.place, rest.data + event.data) if rest else event
        over = len(data) % width
        if over == len(data):
            rest = Chunk(place, data)
            continue
        yield Chunk(place, data[: len(data) - over])
        begin = event.place._replace(offset=event.place.offset + len(event.data) - over)
        rest = Chunk(begin, data[-over:]) if over else None
    if rest:
        yield rest


def warc(events: Events, limit: int) -> Iterator[Range]:
    """WARC records, each with the line ends behind it; what is none, up to the next record, is quarantined.

    Source: ISO 28500:2017 (WARC 1.1), section 4: header, CRLF CRLF, Content-Length bytes, CRLF CRLF.
    A record whose length does not lead to such an end, or to the next record, is not believed: that is then
    looked for behind its first line.
    """
    cursor = _Cursor(events)
    while cursor.fill(1) or cursor.gap:
        place, end = cursor.place, _record_end(cursor, limit)
        if end is None:
            length, found = cursor.skip_to_record()
            detail = "no whole record: it is cut short, or its header or Content-Length is wrong"
            rule = "warc.syntax"
            if not found and (gap := cursor.pass_gap()):
                length, rule, detail = length + gap.length, gap.rule, gap.detail
            yield Range(place, length, None, rule, detail)
        elif end <= limit:
            yield Range(place, end, cursor.take(end))
        elif (length := cursor.skip(end)) == end:
            yield Range(place, length + cursor.skip(cursor.line_ends(0)))
        else:
            gap = cursor.pass_gap()
            rule, detail = (gap.rule, gap.detail) if gap else ("warc.syntax", "the record is cut short")
            yield Range(place, length + (gap.length if gap else 0), None, rule, detail)


def _record_end(cursor: _Cursor, limit: int) -> int | None:
    """Length of the record at the cursor, with the line ends behind it; None when there is no whole one.

    A record longer than the limit is taken at its word.
    """
    size = 1 << 12
    while True:
        head = cursor.peek(0, size)
        if not head.startswith(WARC_VERSION):
            return None
        ends = [at + len(end) for end in (b"\r\n\r\n", b"\n\n") if (at := head.find(end)) >= 0]
        if ends or len(head) < size or size >= WARC_HEAD:
            break
        size *= 2
    found = CONTENT_LENGTH.search(head[: min(ends)]) if ends else None
    if not found:
        return None
    end = min(ends) + int(found.group(1))
    if end > limit:
        return end
    if not cursor.fill(end):
        return None
    believed = cursor.ends_at(end) or cursor.peek(end, 4) in {b"\r\n\r\n", b"WARC"}
    return end + cursor.line_ends(end) if believed else None


class _Cursor:
    """Decoded bytes from a place on, up to the next gap; as many as are asked for are held."""

    def __init__(self, events: Events) -> None:
        self.events = iter(events)
        self.buffer = bytearray()
        self.gap: Gap | None = None
        """What comes after the buffer's last byte."""
        self._begins: list[tuple[int, Place]] = []  # (place in the buffer, place of its byte), of each member

    @property
    def place(self) -> Place:
        """Where the next byte stands, or the gap."""
        if not self.buffer and self.gap:
            return self.gap.place
        at, place = self._begins[0]
        return place._replace(offset=place.offset - at)

    def fill(self, size: int) -> bool:
        """Holds `size` bytes, unless a gap or the end comes before."""
        while len(self.buffer) < size and not self.gap:
            event = next(self.events, None)
            if event is None:
                break
            if isinstance(event, Gap):
                self.gap = event
                break
            if not self.buffer or event.place.member != self._begins[-1][1].member:
                self._begins.append((len(self.buffer), event.place))
            self.buffer += event.data
        return len(self.buffer) >= size

    def peek(self, start: int, size: int) -> bytes:
        """The bytes from `start` on, fewer where a gap or the end comes before."""
        self.fill(start + size)
        return bytes(self.buffer[start : start + size])

    def ends_at(self, at: int) -> bool:
        """Whether a member, a gap or nothing begins at byte `at`."""
        return not self.fill(at + 1) or any(begin == at for begin, _ in self._begins)

    def take(self, size: int) -> bytes:
        """The next `size` bytes, which are held; passes over them."""
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        begins = [(at - size, place) for at, place in self._begins]
        passed = [n for n, (at, _) in enumerate(begins) if at <= 0]
        self._begins = begins[passed[-1] :] if self.buffer else []
        return data

    def skip(self, size: int) -> int:
        """Passes over `size` bytes, or as many as come before a gap or the end; says how many."""
        passed = 0
        while passed < size and self.fill(1):
            passed += len(self.take(min(size - passed, len(self.buffer))))
        return passed

    def line_ends(self, at: int) -> int:
        """Bytes of the line ends from byte `at` on."""
        size = 0
        while self.peek(at + size, 1) in {b"\r", b"\n"}:
            size += 1
        return size

    def skip_to_record(self) -> tuple[int, bool]:
        """Passes on to where a record may begin, a gap, or the end: bytes passed, and whether one may."""
        passed = 0
        while True:
            held = self.fill(WARC_HEAD)
            starts = [at for at, _ in self._begins if at > 0 and self.buffer.startswith(WARC_VERSION, at)]
            line = self.buffer.find(b"\n" + WARC_VERSION)
            if starts or line >= 0:
                found = min([*starts[:1], *([line + 1] if line >= 0 else [])])
                return passed + self.skip(found), True
            if not held:
                return passed + self.skip(len(self.buffer)), False
            passed += self.skip(len(self.buffer) - len(WARC_VERSION) - 1)

    def pass_gap(self) -> Gap | None:
        """The gap that comes next, if one does; passes over it."""
        gap, self.gap = self.gap, None
        return gap
