"""Content digests: of a file, of a folder, of a table.

A table's digest is its schema, its row count and the sum of the SHA-256 of each row's canonical encoding,
taken as eight unsigned 32-bit lanes summed modulo 2^64. It does not depend on the order of rows, on files or
on partitions, and partial sums add up, so executors digest what they hold and the driver adds.

A row's encoding is the concatenation of its values in schema order, each with a tag, so that no two rows
share one:
null `n`; false `f`, true `t`; integer `i<decimal>;`; double `d<8 bytes, IEEE 754 little-endian>` (every NaN
alike, -0.0 as 0.0); string `s<bytes>:<UTF-8>`; binary `b<bytes>:<bytes>`; date `i<days since 1970>;`;
timestamp `i<microseconds since 1970>;`; list `l<items>:` and its items; struct `r` and its fields in order;
map `m<entries>:` and its entries sorted by encoded key.
"""

from __future__ import annotations

import datetime
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.artifacts.canonical import digest

CHUNK = 1 << 20
LANES = 8
Lanes = npt.NDArray[np.uint32]


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


def rows_digest(rows: Iterable[Sequence[Any]]) -> TableDigest:
    """Digest of rows given as sequences of Python values in schema order."""
    return _summed(_hashes(rows))


def grouped_digests(batch: Any, group: Sequence[str]) -> dict[tuple[Any, ...], tuple[TableDigest, list[int]]]:
    """Digest of each group of a batch's rows, with the numbers of its rows; keys are the values of
    `group`."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    hashes = _hashes(zip(*columns.values(), strict=True))
    members: dict[tuple[Any, ...], list[int]] = {}
    # Of no column there is one key, and zip would yield none.
    keys = zip(*(columns[name] for name in group), strict=True) if group else repeat((), len(hashes))
    for number, key in enumerate(keys):
        members.setdefault(key, []).append(number)
    return {key: (_summed(hashes[numbers]), numbers) for key, numbers in members.items()}


def _hashes(rows: Iterable[Sequence[Any]]) -> Lanes:
    """SHA-256 of each row's encoding: [rows, LANES]."""
    hashes = [hashlib.sha256(b"".join(map(encode, row))).digest() for row in rows]
    return np.frombuffer(b"".join(hashes), dtype="<u4").reshape(-1, LANES)


def _summed(hashes: Lanes) -> TableDigest:
    lanes = hashes.sum(axis=0, dtype=np.uint64)
    return TableDigest(len(hashes), tuple(int(lane) for lane in lanes))


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def encode(value: Any) -> bytes:
    """Canonical encoding of one value, as in this module's docstring.

    Raises:
        TypeError: a type without an encoding.
    """
    match value:
        case None:
            return b"n"
        case str():
            data = value.encode("utf-8", "surrogatepass")
            return b"s%d:%b" % (len(data), data)
        case bool():
            return b"t" if value else b"f"
        case int():
            return b"i%d;" % value
        case float():
            return b"d" + struct.pack("<d", float("nan") if value != value else value + 0.0)
        case bytes():
            return b"b%d:%b" % (len(value), value)
        case datetime.datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return b"i%d;" % ((moment - _EPOCH) // _MICROSECOND)
        case datetime.date():
            return b"i%d;" % (value - _EPOCH.date()).days
        case dict():
            return b"r" + b"".join(encode(item) for item in value.values())
        case list() if value and isinstance(value[0], tuple):  # pyarrow gives a map as a list of pairs
            return b"m%d:" % len(value) + b"".join(sorted(encode(k) + encode(v) for k, v in value))
        case list():
            return b"l%d:" % len(value) + b"".join(encode(item) for item in value)
    raise TypeError(f"no canonical encoding for {type(value).__name__}: {value!r}")
