"""From a row of named values to a document: the mapped fields by their meaning, all others as metadata."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from spark_jobs.readers.framing import Range

EXACT = 2.0**63
"""Integers from here on become floats in orjson."""


class Fields(NamedTuple):
    """Names of a source's fields: of JSON lines, CSV, Parquet and Delta."""

    text: str = "text"
    id: str = "id"
    url: str = "url"
    date: str = "date"
    licence: str = "licence"


class Document(NamedTuple):
    """What a record holds."""

    text: str
    url: str | None = None
    external_id: str | None = None
    date: str | None = None
    licence: str | None = None
    metadata: str | None = None
    """Every other field, as canonical JSON of an object."""
    media_type: str = "text/plain"


class BadRecordError(Exception):
    """Inside the readers: why a range holds no document."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(rule)
        self.rule, self.detail = rule, detail


Read = Iterator[tuple[Range, Document | None]]


def parsed(ranges: Iterable[Range], parse: Callable[[bytes], Document], limit: int) -> Read:
    """Each range with the document that `parse` makes of its bytes, or with the rule that it breaks."""
    for found in ranges:
        if found.rule:
            yield found, None
        elif found.data is None:
            yield too_long(found, limit), None
        else:
            try:
                yield found, parse(found.data)
            except BadRecordError as bad:
                yield found._replace(rule=bad.rule, detail=bad.detail), None


def too_long(found: Range, limit: int) -> Range:
    """A range that is longer than a record may be."""
    return found._replace(
        data=None, rule="record.too_long", detail=f"{found.length} bytes, more than max_record_bytes {limit}"
    )


def mapped(row: dict[str, Any], fields: Fields, format_: str) -> Document:
    """The document that a row holds.

    Raises:
        BadRecordError: `<format>.text`: no text; `unicode.surrogate`: half a character in a mapped field.
    """
    text = row.pop(fields.text, _ABSENT)
    if type(text) is not str:
        raise BadRecordError(
            f"{format_}.text", f"field {fields.text!r} holds {_kind(text)}, expected a string"
        )
    names = (fields.url, fields.id, fields.date, fields.licence)
    url, external_id, date, licence = (_optional(row.pop(name, None)) for name in names)
    return Document(text, url, external_id, date, licence, metadata(row))


def metadata(row: dict[str, Any]) -> str | None:
    """Canonical JSON of what is left of a row: sorted keys, no spaces; none of nothing."""
    if not row:
        return None
    try:
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(row, sort_keys=True, separators=(",", ":"))


def jsonl(data: bytes, fields: Fields, encoding: str = "utf-8") -> Document:
    """The document that a line of JSON holds.

    Raises:
        BadRecordError: `encoding`, `jsonl.syntax`, `jsonl.type`, and what `mapped` raises.
    """
    if encoding != "utf-8":
        data = _decoded(data, encoding).encode("utf-8", "surrogatepass")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        row = orjson.loads(data)
        exact = isinstance(row, dict) and not any(map(_inexact, row.values()))
    except orjson.JSONDecodeError:
        exact = False
    if not exact:  # the standard library's is slower, reads more, and says better what is wrong
        row = _loads(data)
    if not isinstance(row, dict):
        raise BadRecordError("jsonl.type", f"found {_kind(row)}, expected an object")
    document = mapped(row, fields, "jsonl")
    return document if exact else _without_surrogates(document)


def _loads(data: bytes) -> Any:
    try:
        return json.loads(_decoded(data, "utf-8"), parse_constant=_Constant, parse_float=_float)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("jsonl.syntax", str(error)) from None


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        detail = f"byte 0x{data[error.start]:02x} at {error.start} of the record is not {encoding.upper()}"
        raise BadRecordError("encoding", detail) from None


class _Constant(str):
    """NaN or an infinity: JSON has none, so metadata keeps its name."""

    __slots__ = ()


def _float(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits


def _inexact(value: Any) -> bool:
    if isinstance(value, float):
        return abs(value) >= EXACT
    if isinstance(value, list):
        return any(map(_inexact, value))
    return isinstance(value, dict) and any(map(_inexact, value.values()))


def _without_surrogates(document: Document) -> Document:
    for value in document[:5]:
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise BadRecordError(
                "unicode.surrogate", f"lone surrogate U+{ord(error.object[error.start]):04X} at {error.start}"
            ) from None
    return document


def _optional(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class _Absent:
    """Of a field that a row does not have."""


_ABSENT = _Absent()
_KINDS: dict[type, str] = {
    _Absent: "nothing",
    _Constant: "a number",
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    bytes: "bytes",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")
