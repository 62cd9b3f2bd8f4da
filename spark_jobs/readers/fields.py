"""From a row of named values to a document: the mapped fields by their meaning, all others as metadata."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from spark_jobs.readers.encoding import utf8
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

    text: bytes
    """UTF-8, as tables keep it: a long string takes up to four times as much."""
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
"""Ranges, of whose `data` only the SHA-256 is left, each with its document."""


def parsed(ranges: Iterable[Range], parse: Callable[[bytes], Document], limit: int) -> Read:
    """Each range with the document that `parse` makes of its bytes, or with the rule that it breaks.

    Of the bytes only the digest goes on, so that they are not held while the document is.
    """
    for found in ranges:
        document = None
        if not found.rule and found.data is None:
            found = too_long(found, limit)  # noqa: PLW2901
        elif not found.rule and found.data is not None:
            try:
                document = parse(found.data)
            except BadRecordError as bad:
                found = found._replace(rule=bad.rule, detail=bad.detail)  # noqa: PLW2901
        if found.data is not None:
            found = found._replace(data=hashlib.sha256(found.data).digest())  # noqa: PLW2901
        yield found, document


def too_long(found: Range, limit: int) -> Range:
    """A range that is longer than a record may be."""
    return found._replace(
        data=None, rule="record.too_long", detail=f"{found.length} bytes, more than max_record_bytes {limit}"
    )


def mapped(text: bytes, others: dict[str, Any], fields: Fields) -> Document:
    """The document of a text and of a row's other values."""
    names = (fields.url, fields.id, fields.date, fields.licence)
    url, external_id, date, licence = (_optional(others.pop(name, None)) for name in names)
    return Document(text, url, external_id, date, licence, metadata(others))


def no_text(kind: str, fields: Fields, *found: Any) -> BadRecordError:
    """Why a row of a format holds no text: nothing, or what was found."""
    detail = f"field {fields.text!r} holds {_kind(*found) if found else 'nothing'}, expected a string"
    return BadRecordError(f"{kind}.text", detail)


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
        BadRecordError: `encoding`, `jsonl.syntax`, `jsonl.type`; `jsonl.text`: no text; `unicode.surrogate`:
            half a character in a mapped field.
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
    present = fields.text in row
    text = row.pop(fields.text, None)
    if type(text) is not str:
        raise no_text("jsonl", fields, *([text] if present else []))
    try:
        document = mapped(utf8(text), row, fields)
        for value in () if exact else document[1:5]:
            utf8(value or "")
    except UnicodeEncodeError as error:
        detail = f"lone surrogate U+{ord(error.object[error.start]):04X} at {error.start}"
        raise BadRecordError("unicode.surrogate", detail) from None
    return document


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


def _optional(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


_KINDS: dict[type, str] = {
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
