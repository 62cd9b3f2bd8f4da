"""CSV and TSV (RFC 4180): a record a row, which may hold line ends in quotes; the first names the fields.

Of our own, for a field here may be 50 MB long, which Python's csv keeps at four bytes a character, and rows
of many short lines are read several times faster.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator

from spark_jobs.readers.documents import about
from spark_jobs.readers.encoding import NotTextError, by_mark, decode, is_utf8
from spark_jobs.readers.fields import BadRecordError, Document, Fields, Read, mapped, no_text, too_long
from spark_jobs.readers.framing import Events, Range, physical_lines

HEAD = 1 << 16
"""Bytes of the file that its encoding is found in."""
END = b"\r\n"


def rows(events: Events, head: bytes, delimiter: bytes, fields: Fields, limit: int) -> Read:
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
        rule, detail, document = found.rule, found.detail, None
        try:
            if rule:
                pass
            elif not row:
                rule, detail = "csv.blank", "blank lines"
            elif names is None:
                names = _distinct(_decoded(row))
                rule, detail = "csv.header", "names of the fields"
            else:
                document = _document(names, row, fields, encoding)
        except BadRecordError as bad:
            rule, detail = bad.rule, bad.detail
        row.clear()
        yield found._replace(rule=rule, detail=detail), document


def _document(names: list[str], row: list[bytes], fields: Fields, encoding: str) -> Document:
    if len(row) != len(names):
        raise BadRecordError("csv.columns", f"{len(row)} values, the header names {len(names)}")
    if fields.text not in names:
        raise no_text("csv", fields)
    text = row.pop(at := names.index(fields.text))
    if not is_utf8(text):
        raise BadRecordError("encoding", f"field {fields.text!r} is not UTF-8")
    others = dict(zip(names[:at] + names[at + 1 :], _decoded(row), strict=True))
    return mapped(text, others | about(encoding), fields)


def _decoded(row: list[bytes]) -> list[str]:
    try:
        return [value.decode() for value in row]
    except UnicodeDecodeError as error:
        detail = f"byte 0x{error.object[error.start]:02x} at {error.start} of a value is not UTF-8"
        raise BadRecordError("encoding", detail) from None


def _encoding(head: bytes) -> str:
    """The file's encoding; the head may end inside a character."""
    if marked := by_mark(head):
        return marked[0]
    try:
        return decode(head[: head.rfind(b"\n") + 1] or head).encoding
    except NotTextError:
        return "utf-8"


def _distinct(names: list[str]) -> list[str]:
    return [
        f"{name}#{names[:at].count(name) + 1}" if name in names[:at] else name
        for at, name in enumerate(names)
    ]


def _rows(events: Events, encoding: str, delimiter: bytes, limit: int) -> Iterator[tuple[Range, list[bytes]]]:
    """Every row's range with its values as UTF-8; none for a blank line, and where a rule says why."""
    lines = _Lines(physical_lines(events, limit, "\n".encode(encoding)), encoding)
    parser = _Parser(delimiter)
    taken: list[Range] = []
    size = 0
    while True:
        line = next(lines, None)
        if line is None:
            if not taken:
                return
            lines.give_back(taken[1:])  # a quote without an end: no more than its line is lost
            yield _merged(taken[:1], "csv.syntax", "a quote that does not end"), parser.take()
            taken, size = [], 0
            continue
        taken.append(line)
        size += line.length
        rule, detail, complete = line.rule, line.detail, False
        if not rule and (line.data is None or size > limit):
            long = too_long(line._replace(length=size), limit)
            rule, detail = long.rule, long.detail
        elif not rule and line.data is not None:
            try:
                complete = parser.feed(lines.utf8(line))
            except BadRecordError as bad:
                rule, detail = bad.rule, bad.detail
        if complete or rule:
            yield _merged(taken, rule, detail), parser.take()
            size = 0


def _merged(taken: list[Range], rule: str, detail: str) -> Range:
    """The lines as one range, with the digest of their bytes; lets go of them."""
    digest, length, first = hashlib.sha256(), 0, taken[0].place
    for line in taken:
        digest.update(line.data or b"")
        length += line.length
    taken.clear()
    return Range(first, length, digest.digest(), rule, detail)


class _Parser:
    """The values of a row, from one line after the other."""

    def __init__(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        self._row: list[bytes] = []
        self._quoted: list[bytes] | None = None  # what stands in quotes that are still open

    def take(self) -> list[bytes]:
        """The values so far; begins anew."""
        row, self._row, self._quoted = self._row, [], None
        return row

    def feed(self, line: bytes) -> bool:
        """Takes a line; whether the row is complete.

        Raises:
            BadRecordError: `csv.syntax`.
        """
        at = 0
        if self._quoted is None and b'"' not in line:
            held = line.rstrip(END)
            self._row = held.split(self.delimiter) if held else []
            return True
        while True:
            if self._quoted is None and line.startswith(b'"', at):
                self._quoted, at = [], at + 1
            if self._quoted is None:
                end = line.find(self.delimiter, at)
                self._row.append(line[at:end] if end >= 0 else line[at:].rstrip(END))
                if end < 0:
                    return True
            else:
                end = line.find(b'"', at)
                while end >= 0 and line.startswith(b'"', end + 1):
                    end = line.find(b'"', end + 2)
                self._quoted.append(line[at:end] if end >= 0 else line[at:])
                if end < 0:
                    return False
                self._row.append(b"".join(self._quoted).replace(b'""', b'"'))
                self._quoted, end = None, end + 1
                if not line[end : end + 2].strip(END):
                    return True
                if not line.startswith(self.delimiter, end):
                    raise BadRecordError(
                        "csv.syntax", "something stands between a quote's end and a delimiter"
                    )
            at = end + 1


class _Lines:
    """Lines that can be given back."""

    def __init__(self, lines: Iterator[Range], encoding: str) -> None:
        self._lines, self.encoding = lines, encoding
        self._waiting: deque[Range] = deque()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> Range:
        return self._waiting.popleft() if self._waiting else next(self._lines)

    def give_back(self, lines: list[Range]) -> None:
        """Lines that come next, again."""
        self._waiting.extendleft(reversed(lines))

    def utf8(self, line: Range) -> bytes:
        """The line in UTF-8, without a byte order mark.

        Raises:
            BadRecordError: `encoding`.
        """
        data = line.data or b""
        if self.encoding != "utf-8":
            try:
                data = data.decode(self.encoding).encode()
            except UnicodeDecodeError as error:
                detail = f"not {self.encoding}, as the file's head is: {error.reason}"
                raise BadRecordError("encoding", detail) from None
        return data.removeprefix(b"\xef\xbb\xbf") if line.place.offset == 0 else data
