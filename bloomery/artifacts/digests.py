"""Content digests: of a file, of a folder, of a table.

A table's digest is its schema, its row count and the sum of the SHA-256 of each row's canonical encoding,
taken as eight unsigned 32-bit lanes summed modulo 2^64. It does not depend on the order of rows, on files or
on partitions, and partial sums add up, so executors digest what they hold and the driver adds.

A row's encoding is the concatenation of its values in schema order, each with a tag, so that no two rows
share one:
null `n`; false `f`, true `t`; integer `i<decimal>;`; double `d<8 bytes, IEEE 754 little-endian>` (every NaN
alike, -0.0 as 0.0); string `s<bytes>:<UTF-8>`; binary `b<bytes>:<bytes>`; date `i<days since 1970>;`;
timestamp `i<microseconds since 1970>;`; list `l<items>:` and its items; struct `r` and its fields in order;
map `m<entries>:` and its entries sorted by encoded key, an empty one as an empty list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.artifacts.canonical import digest

CHUNK = 1 << 20
LANES = 8
Lanes = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.int64]


def file_digest(path: str | Path) -> str:
    """sha256 of a file's bytes, in hex; read as a stream."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(files: Mapping[str, str]) -> str:
    """Digest of a folder from {relative path: sha256 of the file}."""
    return digest({"files": dict(files)})


@dataclass(frozen=True)
class TableDigest:
    """A partial or whole digest of a table's rows; `+` joins the digests of disjoint parts."""

    rows: int = 0
    lanes: tuple[int, ...] = (0,) * LANES

    def __add__(self, other: TableDigest) -> TableDigest:
        lanes = tuple((a + b) % (1 << 64) for a, b in zip(self.lanes, other.lanes, strict=True))
        return TableDigest(self.rows + other.rows, lanes)

    def hexdigest(self, schema: Sequence[tuple[str, str]]) -> str:
        """The table's content digest, given its columns as (name, type) in order."""
        columns = [[name, kind] for name, kind in schema]
        return digest(
            {"schema": columns, "rows": self.rows, "lanes": [f"{lane:016x}" for lane in self.lanes]}
        )


def grouped_digests(batch: Any, group: Sequence[str]) -> dict[tuple[Any, ...], tuple[TableDigest, Rows]]:
    """Digest of each group of a batch's rows, with the numbers of its rows; keys are the values of
    `group`.

    Args:
        batch: pyarrow RecordBatch or Table.
        group: columns; of none there is one group.

    Raises:
        TypeError: a column's type has no encoding.
    """
    import pyarrow as pa

    hashes = _row_hashes(batch)
    # Of no column there is one group, but pyarrow wants a key.
    keys = [pa.repeat(0, len(batch)), *(_array(batch.column(name)) for name in group)]
    names = [str(number) for number in range(len(keys))]
    table = pa.table([*keys, np.arange(len(batch))], [*names, "row"])
    groups = table.group_by(names, use_threads=False).aggregate([("row", "list")])
    found = {}
    for number, key in enumerate(zip(*(groups[name].to_pylist() for name in names), strict=True)):
        rows = groups["row_list"][number].values.to_numpy()
        lanes = hashes[rows].sum(axis=0, dtype=np.uint64)
        found[key[1:]] = TableDigest(len(rows), tuple(map(int, lanes))), rows
    return found


def _row_hashes(batch: Any) -> Lanes:
    """SHA-256 of the encoding of each row of a pyarrow RecordBatch or Table: [rows, LANES]."""
    joined = _joined(batch.columns, len(batch))
    ends = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1).tolist()
    data = memoryview(joined.buffers()[2] or b"")
    hashes = [hashlib.sha256(data[start:end]).digest() for start, end in pairwise(ends)]
    return np.frombuffer(b"".join(hashes), "<u4").reshape(-1, LANES)


def _array(column: Any) -> Any:
    """A column of a RecordBatch or Table as one pyarrow array."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _pieces(array: Any) -> list[Any]:
    """Binary arrays without nulls that, one behind the other, are the encodings of a pyarrow array's values.

    By arrays, not value by value: that was most of what it costs to read a table back.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = array.type, pa.types
    if types.is_string(kind) or types.is_binary(kind):
        tag = b"s" if types.is_string(kind) else b"b"
        return [_headed(tag, pc.binary_length(array), b":"), array.cast(pa.binary()).fill_null(b"")]
    if types.is_integer(kind):
        return [_headed(b"i", array, b";")]
    if types.is_floating(kind):
        values = array.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        values[np.isnan(values)] = np.nan
        data = pa.py_buffer(values.astype("<f8"))
        eights = pa.Array.from_buffers(pa.binary(8), len(array), [None, data])
        return _tagged(b"d", array, eights.cast(pa.binary()))
    if types.is_boolean(kind):
        return [_bytes(pc.fill_null(pc.if_else(array, "t", "f"), "n"))]
    if types.is_list(kind) or types.is_map(kind):
        return _pieces_of_lists(array)
    if types.is_struct(kind):
        return _tagged(b"r", array, _joined(array.flatten(), len(array)))
    if types.is_timestamp(kind):
        return [_headed(b"i", array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()), b";")]
    if types.is_date32(kind):
        return [_headed(b"i", array.cast(pa.int32()), b";")]
    if types.is_null(kind):
        return [pa.repeat(b"n", len(array))]
    raise TypeError(f"no canonical encoding for {kind}")


def _pieces_of_lists(array: Any) -> list[Any]:
    """`_pieces` of lists, or of maps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_map = pa.types.is_map(array.type)
    if is_map:
        entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(entry))
    lengths, items = pc.list_value_length(array), array.flatten()
    counts = lengths.fill_null(0).to_numpy()
    encoded, head = _joined(items.flatten() if is_map else [items], len(items)), _headed(b"l", lengths, b":")
    if is_map:
        rows = pa.array(np.repeat(np.arange(len(array)), counts))
        by = [("row", "ascending"), ("entry", "ascending")]
        encoded = encoded.take(pc.sort_indices(pa.table({"row": rows, "entry": encoded}), by))
        head = pc.if_else(pa.array(counts > 0), _headed(b"m", lengths, b":"), head)
    ends = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
    return [head, pc.binary_join(pa.ListArray.from_arrays(ends, encoded), b"")]


def _joined(columns: Sequence[Any], rows: int) -> Any:
    """The encodings of rows of columns: a pyarrow BinaryArray."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces = [piece for column in columns for piece in _pieces(_array(column))]
    return pc.binary_join_element_wise(pa.repeat(b"", rows), *pieces, b"")


def _headed(tag: bytes, numbers: Any, end: bytes) -> Any:
    """`<tag><number><end>` of each number, `n` of null."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.binary_join_element_wise(tag, _bytes(numbers), end, b""), b"n")


def _tagged(tag: bytes, array: Any, encoded: Any) -> list[Any]:
    """The tag and what is encoded of each value of `array`, `n` of null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_valid = array.is_valid()
    return [pc.if_else(is_valid, *map(pa.scalar, (tag, b"n"))), pc.if_else(is_valid, encoded, b"")]


def _bytes(values: Any) -> Any:
    """Numbers or strings as a pyarrow BinaryArray."""
    import pyarrow as pa

    return values.cast(pa.string()).cast(pa.binary())
