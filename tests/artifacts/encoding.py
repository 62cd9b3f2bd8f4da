"""The encoding of a row, value by value, as bloomery.artifacts.digests tells it: arrays are held to it."""

from __future__ import annotations

import datetime
import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bloomery.artifacts.digests import LANES, TableDigest


def rows_digest(rows: Iterable[Sequence[Any]]) -> TableDigest:
    """Digest of rows given as sequences of Python values in schema order."""
    hashes = [hashlib.sha256(b"".join(map(encode, row))).digest() for row in rows]
    lanes = np.frombuffer(b"".join(hashes), "<u4").reshape(-1, LANES).sum(axis=0, dtype=np.uint64)
    return TableDigest(len(hashes), tuple(map(int, lanes)))


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def encode(value: Any) -> bytes:
    """Canonical encoding of one value, as in the docstring of bloomery.artifacts.digests.

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
