"""CSV and TSV (RFC 4180): a record a row, which may hold line ends in quotes; the first names fields."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator

from spark_jobs.readers.documents import about
from spark_jobs.readers.encoding import NotTextError, Text, by_mark, decode
from spark_jobs.readers.fields import BadRecordError, Fields, Read, mapped, too_long
from spark_jobs.readers.framing import Events, Range, physical_lines

HEAD = 1 << 16
"""Bytes of the file that its encoding is found in."""


def rows(events: Events, head: bytes, delimiter: str, fields: Fields, limit: int) -> Read:
    """Every row with its document.

    Args:
        events: the file's decoded bytes.
        head: its first HEAD bytes or fewer.
        delimiter: between fields.
        fields: names of the mapped ones.
        limit: bytes that a row may have.
    """
    encoding = _encoding(head)
    names: list[str] | None = None
    for found, row in _rows(events, encoding, delimiter, limit):
        if found.rule:
            yield found, None
        elif not row:
            yield found._replace(rule="csv.blank", detail="blank lines"), None
        elif names is None:
            names = _distinct(row)
            yield found._replace(rule="csv.header", detail="names of the fields"), None
        elif len(row) != len(names):
            detail = f"{len(row)} values, the header names {len(names)}"
            yield found._replace(rule="csv.columns", detail=detail), None
        else:
            try:
                document = mapped(
                    dict(zip(names, row, strict=True)) | about(Text("", encoding)), fields, "csv"
                )
                yield found, document
            except BadRecordError as bad:
                yield found._replace(rule=bad.rule, detail=bad.detail), None


def _encoding(head: bytes) -> str:
    """The file's encoding; the head may end inside a character."""
    if marked := by_mark(head):
        return marked[0]
    whole_lines = head[: head.rfind(b"\n") + 1] or head
    try:
        return decode(whole_lines).encoding
    except NotTextError:
        return "utf-8"


def _distinct(names: list[str]) -> list[str]:
    return [
        f"{name}#{names[:at].count(name) + 1}" if name in names[:at] else name
        for at, name in enumerate(names)
    ]


def _rows(events: Events, encoding: str, delimiter: str, limit: int) -> Iterator[tuple[Range, list[str]]]:
    csv.field_size_limit(limit)
    feed = _Feed(physical_lines(events, limit, "\n".encode(encoding)), encoding, limit)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin_row()
        try:
            row = next(reader)
            yield _merged(feed.taken), row
        except StopIteration:
            return
        except _UnreadableError:
            yield _merged(feed.taken), []
            reader = csv.reader(feed, delimiter=delimiter, strict=True)
        except csv.Error as error:
            if "unexpected end of data" in str(
                error
            ):  # a quote without an end: no more than its line is lost
                feed.give_back(feed.taken[1:])
                feed.taken = feed.taken[:1]
            yield _merged(feed.taken)._replace(rule="csv.syntax", detail=str(error)), []
            reader = csv.reader(feed, delimiter=delimiter, strict=True)


def _merged(taken: list[Range]) -> Range:
    length = sum(line.length for line in taken)
    bad = next((line for line in taken if line.rule), None)
    if bad:
        return Range(taken[0].place, length, None, bad.rule, bad.detail)
    return Range(taken[0].place, length, b"".join(line.data or b"" for line in taken))


class _UnreadableError(Exception):
    """A line that is no text, or too long; the last of what was taken says why."""


class _Feed:
    """Lines for csv.reader, which takes as many as a row has; those of the current row are `taken`."""

    def __init__(self, lines: Iterator[Range], encoding: str, limit: int) -> None:
        self.lines, self.encoding, self.limit = lines, encoding, limit
        self.taken: list[Range] = []
        self._size = 0
        self._waiting: deque[Range] = deque()

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self.lines)
        self.taken.append(line)
        self._size += line.length
        if line.rule or line.data is None or self._size > self.limit:
            if not line.rule:
                bad = too_long(line._replace(length=self._size), self.limit)
                self.taken[-1] = bad._replace(length=line.length)
            raise _UnreadableError
        try:
            text = line.data.decode(self.encoding)
        except UnicodeDecodeError as error:
            self.taken[-1] = line._replace(
                data=None,
                rule="encoding",
                detail=f"not {self.encoding}, as the file's head is: {error.reason}",
            )
            raise _UnreadableError from None
        return text.removeprefix("\ufeff") if line.place.offset == 0 else text

    def begin_row(self) -> None:
        """What was taken so far is a row."""
        self.taken, self._size = [], 0

    def give_back(self, lines: list[Range]) -> None:
        """Lines that the next row begins with."""
        self._waiting.extendleft(reversed(lines))
