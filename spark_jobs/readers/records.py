"""Records of a file: (offset, length) ranges of its decoded bytes, each with a text or with the rule that
quarantined it.

    decoded bytes   {"text": "a"}\\n  \\n {"text": 1}\\n  {"te          (the file is cut here)
    ranges          [---- kept ----][- jsonl.text --][ file.broken ]

The ranges follow one another without a gap, so that no byte is lost in silence. A blank line belongs to the
record after it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bloomery.config.sources import IngestConfig
from spark_jobs.readers.listing import File
from spark_jobs.readers.streams import Decoded

BOM = b"\xef\xbb\xbf"
CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]+)", re.I)


class Fields(NamedTuple):
    """Names of a JSONL source's fields."""

    text: str = "text"
    id: str = "id"
    url: str = "url"


@dataclass(frozen=True)
class Record:
    """A range of a file's decoded bytes; kept when `rule` is empty, else quarantined by it."""

    offset: int
    length: int
    id: str
    text: str | None = None
    url: str | None = None
    external_id: str | None = None
    media_type: str = "text/plain"
    rule: str = ""
    detail: str = ""


class BadRecordError(Exception):
    """Inside this module: why a range is quarantined."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(rule)
        self.rule, self.detail = rule, detail


def read_records(file: File, fields: Fields, config: IngestConfig) -> Iterator[Record]:
    """Every record and quarantined range of `file`, in order.

    Raises:
        SourceError: the file cannot be read or has changed since it was listed.
        AssertionError: ranges that do not cover what was decoded: a bug of a reader.
    """
    stream = Decoded(file, config.max_file_bytes)
    covered = 0
    for record in _ranges(file, stream, fields, config.max_record_bytes):
        assert record.offset == covered, f"{file.uri}: a range starts at {record.offset}, expected {covered}"
        covered += record.length
        yield record
    if stream.error:
        rule = "file.too_long" if stream.count == config.max_file_bytes else "file.broken"
        tail = stream.count + stream.rest - covered
        yield Record(
            covered,
            tail,
            record_id(file, covered, b""),
            rule=rule,
            detail=f"{stream.error} at byte {stream.count}",
        )
        covered += tail
    expected = stream.count + stream.rest
    assert covered == expected, f"{file.uri}: {covered} bytes in records, {expected} decoded"
    assert stream.compressed or covered == file.size, f"{file.uri}: {covered} bytes read, {file.size} listed"


def record_id(file: File, offset: int, data: bytes) -> str:
    """A record's id: it follows from where the record stands and what it holds, and from nothing else."""
    place = f"{file.source}\0{file.path}\0{offset}\0".encode("utf-8", "surrogateescape")
    return hashlib.sha256(place + hashlib.sha256(data).digest()).hexdigest()[:32]


class Range(NamedTuple):
    """Bytes of a record; `data` is None when they are more than the limit."""

    offset: int
    length: int
    data: bytes | None


def _ranges(file: File, stream: Decoded, fields: Fields, limit: int) -> Iterator[Record]:
    ranges = _lines(stream, limit) if file.format == "jsonl" else _whole(stream, limit)
    read = _READERS.get(file.format, _read_unknown)
    for found in ranges:
        blank = Record(found.offset, found.length, record_id(file, found.offset, found.data or b""))
        try:
            if found.data is None:
                raise BadRecordError(
                    "record.too_long", f"{found.length} bytes, more than max_record_bytes {limit}"
                )
            data = found.data.removeprefix(BOM) if found.offset == 0 else found.data
            record = replace(blank, **read(data, fields))
            _check_unicode(record)
            yield record
        except BadRecordError as bad:
            yield replace(blank, rule=bad.rule, detail=bad.detail)


def _lines(stream: Decoded, limit: int) -> Iterator[Range]:
    """Lines with their line ends; blank ones go with the next line, at the end with the last one."""
    offset, length = 0, 0
    parts: list[bytes] = []
    last: Range | None = None
    for block in stream:
        start = 0
        while start < len(block):
            end = block.find(b"\n", start) + 1
            piece = block[start : end or None]
            start += len(piece)
            length += len(piece)
            parts = [*parts, piece] if length <= limit else []
            if not end or (parts and not b"".join(parts).strip()):
                continue
            if last:
                yield last
            last = Range(offset, length, b"".join(parts) if parts else None)
            offset, length, parts = offset + length, 0, []
    blank = bool(parts) and not b"".join(parts).strip()
    if last and blank and not stream.error:
        last = last._replace(length=last.length + length)
        length = 0
    if last:
        yield last
    if length and not stream.error:  # else the caller quarantines it with the error
        yield Range(offset, length, b"".join(parts) if parts else None)


def _whole(stream: Decoded, limit: int) -> Iterator[Range]:
    """The whole file as one range; none when it is empty or broken."""
    parts: list[bytes] = []
    for block in stream:
        parts = [*parts, block] if stream.count <= limit else []
    if stream.count and not stream.error:
        yield Range(0, stream.count, b"".join(parts) if parts else None)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecordError(
            "encoding", f"byte 0x{data[error.start]:02x} at {error.start} of the record is not UTF-8"
        ) from None


def _check_unicode(record: Record) -> None:
    for value in (record.text, record.url, record.external_id):
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise BadRecordError(
                "unicode.surrogate", f"lone surrogate U+{ord(error.object[error.start]):04X} at {error.start}"
            ) from None


def _read_jsonl(data: bytes, fields: Fields) -> dict[str, Any]:
    text = _text(data)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("jsonl.syntax", str(error)) from None
    if not isinstance(row, dict):
        raise BadRecordError("jsonl.type", f"found {_kind(row)}, expected an object")
    if not isinstance(row.get(fields.text), str):
        found = _kind(row[fields.text]) if fields.text in row else "nothing"
        raise BadRecordError("jsonl.text", f"field {fields.text!r} holds {found}, expected a string")
    return {
        "text": row[fields.text],
        "url": _optional(row.get(fields.url)),
        "external_id": _optional(row.get(fields.id)),
    }


def _optional(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )


def _read_text(data: bytes, fields: Fields) -> dict[str, Any]:  # noqa: ARG001
    return {"text": _text(data)}


def _read_markdown(data: bytes, fields: Fields) -> dict[str, Any]:  # noqa: ARG001
    return {"text": _text(data), "media_type": "text/markdown"}


def _read_html(data: bytes, fields: Fields) -> dict[str, Any]:  # noqa: ARG001
    try:
        text = _text(data)
    except BadRecordError:
        declared = CHARSET.search(data[:4096])
        try:
            text = data.decode(declared.group(1).decode() if declared else "utf-8")
        except (UnicodeDecodeError, LookupError) as error:
            raise BadRecordError("encoding", f"not UTF-8, nor as the page declares: {error}") from None
    return {"text": text, "media_type": "text/html"}


def _read_metadata(data: bytes, fields: Fields) -> dict[str, Any]:  # noqa: ARG001
    """The description of a Python distribution: what follows the headers of its METADATA file."""
    head, _, body = _text(data).partition("\n\n")
    kind = "text/markdown" if "text/markdown" in head else "text/plain"
    return {"text": body, "media_type": kind}


def _read_python(data: bytes, fields: Fields) -> dict[str, Any]:  # noqa: ARG001
    """The docstrings of a module, its classes and functions, each after its name."""
    try:
        module = ast.parse(_text(data))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadRecordError("python.syntax", str(error)) from None
    parts = []
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node, clean=False)
            if found and found.strip():
                heading = [] if isinstance(node, ast.Module) else [node.name]
                parts.append("\n".join([*heading, inspect.cleandoc(found)]))
    return {"text": "\n\n".join(parts)}


def _read_unknown(data: bytes, fields: Fields) -> dict[str, Any]:  # noqa: ARG001
    raise BadRecordError("file.format", "no reader goes with the file's suffix; name a format for the source")


_READERS: dict[str, Callable[[bytes, Fields], dict[str, Any]]] = {
    "jsonl": _read_jsonl,
    "text": _read_text,
    "markdown": _read_markdown,
    "html": _read_html,
    "metadata": _read_metadata,
    "python": _read_python,
}
