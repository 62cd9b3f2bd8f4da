"""Parquet: a record a row. Its bytes are no text: a place here is a row's number, and a length counts rows.

A row group that is broken is quarantined as a whole, and the groups around it are read. Without a footer
nothing says where a group begins: then the file is quarantined, and its rows are not known.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from spark_jobs.readers.compression import Place
from spark_jobs.readers.encoding import is_utf8
from spark_jobs.readers.fields import BadRecordError, Document, Fields, Read, mapped, no_text, too_long
from spark_jobs.readers.framing import Range
from spark_jobs.readers.storage import ReadError, Seekable, Stored

ROWS = 256
"""Rows taken at once: their texts are held together."""


def rows(stored: Stored, fields: Fields, limit: int, start: int, stop: int | None) -> Read:
    """The rows from number `start` to `stop`, which begin row groups, each with its document."""
    import pyarrow as pa

    try:
        file = _opened(stored)
    except ReadError as error:
        yield Range(Place(None, 0), 0, None, error.rule, error.detail), None
        return
    except (pa.ArrowException, OSError, ValueError) as error:
        detail = (
            f"broken parquet: {_first_line(error)}: stored bytes 0..{stored.size}, their rows are not known"
        )
        yield Range(Place(None, 0), 0, None, "file.broken", detail), None
        return
    constants: dict[str, Any] = json.loads(stored.file.columns or "{}")
    end = 0
    for group, first, count in groups(file):
        end = first + count
        if start <= first and (stop is None or first < stop):
            whole = Range(Place(None, first), count)
            for place, row in _group(stored, file, group, whole, fields):
                yield (place, None) if row is None else _document(place, row, constants, fields, limit)
    said = file.metadata.num_rows
    if said != end and stop is None:
        detail = f"broken parquet: its footer counts {said} rows, its row groups {end}"
        yield Range(Place(None, end), 0, None, "file.broken", detail), None
    elif not end:
        yield Range(Place(None, 0), 0, None, "file.empty", "no rows"), None


def groups(file: Any) -> Iterator[tuple[int, int, int]]:
    """(number, first row, rows) of each row group."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        count = max(0, file.metadata.row_group(group).num_rows)
        yield group, first, count
        first += count


def group_at(stored: Stored, begin: int, end: int) -> int | None:
    """First row of the first row group in the stored bytes [begin, end), if all rows were of one size.

    Where its bytes do begin stands in its columns' metadata; broken ones make Arrow abort the process.
    """
    import pyarrow as pa

    try:
        file = _opened(stored)
    except (pa.ArrowException, OSError, ValueError):
        return None
    found = list(groups(file))
    rows = sum(count for _, _, count in found)
    places = ((first, first * stored.size // rows) for _, first, _ in found if rows)
    return next((first for first, place in places if begin <= place < end), None)


def _opened(stored: Stored) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(
        Seekable(stored), buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
    )


class _Row(NamedTuple):
    text: bytes | BadRecordError
    """Bytes of a string that is not checked to be UTF-8, or why there is none."""
    others: dict[str, Any]
    """The other columns, with an error in place of a string that is not UTF-8."""


def _group(
    stored: Stored, file: Any, group: int, whole: Range, fields: Fields
) -> Iterator[tuple[Range, _Row | None]]:
    import pyarrow as pa

    read = 0
    try:
        for batch in file.iter_batches(batch_size=ROWS, row_groups=[group]):
            for row in _rows(batch, fields):
                yield Range(Place(None, whole.place.offset + read), 1), row
                read += 1
        rule, detail = "file.broken", "it holds fewer rows than its footer says"
    except ReadError as error:
        rule, detail = error.rule, error.detail
    except (pa.ArrowException, OSError, ValueError) as error:
        stored.check_unchanged()
        rule, detail = "file.broken", _first_line(error)
    if read < whole.length:
        rest = Place(None, whole.place.offset + read)
        yield Range(rest, whole.length - read, None, rule, f"parquet row group {group}: {detail}"), None


def _rows(batch: Any, fields: Fields) -> Iterator[_Row]:
    import pyarrow as pa

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    texts = columns.pop(fields.text, None)
    strings = texts is not None and _is_string(texts.type)
    if strings and not pa.types.is_string(texts.type):
        texts = texts.cast(pa.large_string()).cast(pa.large_binary())
    elif strings:
        texts = texts.cast(pa.binary())
    for at in range(batch.num_rows):
        found = [_value(texts, at)] if texts is not None else []
        text = found[0] if strings and found[0] is not None else no_text("parquet", fields, *found)
        yield _Row(text, {name: _value(column, at) for name, column in columns.items()})


def _is_string(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _value(column: Any, at: int) -> Any:
    try:
        return column[at].as_py()
    except UnicodeDecodeError as error:
        return BadRecordError("encoding", f"byte {error.start} of a string is not UTF-8")


def _document(
    place: Range, row: _Row, constants: dict[str, Any], fields: Fields, limit: int
) -> tuple[Range, Document | None]:
    try:
        if isinstance(row.text, BadRecordError):
            raise row.text
        if len(row.text) > limit:
            long = too_long(place._replace(length=len(row.text)), limit)
            raise BadRecordError(long.rule, long.detail)
        if not is_utf8(row.text):
            raise BadRecordError("encoding", f"field {fields.text!r} is not UTF-8")
        others = {name: _plain(value) for name, value in (row.others | constants).items()}
        found = mapped(row.text, others, fields)
    except BadRecordError as bad:
        return place._replace(rule=bad.rule, detail=bad.detail), None
    held = hashlib.sha256(found.text)
    held.update(repr(found[1:]).encode())
    return place._replace(data=held.digest()), found


def _plain(value: Any) -> Any:
    """A value of Arrow as one of JSON."""
    if isinstance(value, BadRecordError):
        raise value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
