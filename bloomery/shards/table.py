"""The binary tables of a dataset: what stands of each shard of a stream, and the names of a source's files.

    tables/<split>/<source>.shards   columns of [shards], one after the other, in COLUMNS' order
    tables/files/<source>            u64 files | u64 ends [files] | the names, UTF-8, sorted

Both are mapped, never parsed: a column is contiguous, so a search in it reads a few pages of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bloomery.shards.format import DamagedError

COLUMNS = {
    "tokens_before": np.dtype("<u8"),
    "documents_before": np.dtype("<u8"),
    "first_key": np.dtype("<u8"),
    "tokens": np.dtype("<u8"),
    "documents": np.dtype("<u8"),
    "bytes": np.dtype("<u8"),
    "side_bytes": np.dtype("<u8"),
    "name": np.dtype("V16"),
    "bin_sha256": np.dtype("V32"),
    "idx_sha256": np.dtype("V32"),
    "side_sha256": np.dtype("V32"),
}
ROW = sum(kind.itemsize for kind in COLUMNS.values())
"""Bytes that a table holds of a shard."""


class ShardInfo(NamedTuple):
    """What stands of a shard in its table."""

    name: str
    """First 32 hex digits of sha256(sha256 of .bin, of .idx, of .side): the files' stem."""
    first_key: int
    """Key of its first document; the shard ends where the next one begins."""
    documents: int
    tokens: int
    bytes: int
    """UTF-8 bytes of the documents' texts."""
    side_bytes: int
    """Size of .side."""
    bin_sha256: str
    idx_sha256: str
    side_sha256: str

    def files(self) -> dict[str, str]:
        """Name and sha256 of its files."""
        return {
            f"{self.name}.bin": self.bin_sha256,
            f"{self.name}.idx": self.idx_sha256,
            f"{self.name}.side": self.side_sha256,
        }


@dataclass(frozen=True)
class ShardTable:
    """The shards of a stream, in the order of their keys; each column is [shards]."""

    tokens_before: npt.NDArray[np.uint64]
    """Tokens of the stream before the shard."""
    documents_before: npt.NDArray[np.uint64]
    first_key: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.uint64]
    documents: npt.NDArray[np.uint64]
    bytes: npt.NDArray[np.uint64]
    side_bytes: npt.NDArray[np.uint64]
    name: npt.NDArray[np.void]
    bin_sha256: npt.NDArray[np.void]
    idx_sha256: npt.NDArray[np.void]
    side_sha256: npt.NDArray[np.void]

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.tokens)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps a table.

        Raises:
            DamagedError: it is absent, or its size is not that of whole rows.
        """
        data = _map(path)
        shards, left = divmod(len(data), ROW)
        if left:
            raise DamagedError(path, f"{len(data)} bytes, expected a multiple of {ROW}")
        at, columns = 0, {}
        for name, kind in COLUMNS.items():
            size = kind.itemsize * shards
            columns[name] = data[at : at + size].view(kind)
            at += size
        return cls(**columns)

    def __getitem__(self, number: int) -> ShardInfo:
        """One shard."""
        values: dict[str, Any] = {field: getattr(self, field)[number] for field in ShardInfo._fields}
        for field, value in values.items():
            values[field] = value.tobytes().hex() if COLUMNS[field].kind == "V" else int(value)
        return ShardInfo(**values)


def table_bytes(shards: Sequence[ShardInfo]) -> bytes:
    """The table of shards that are in the order of their keys."""
    columns: dict[str, Any] = {
        field: [bytes.fromhex(value) if COLUMNS[field].kind == "V" else value for value in values]
        for field, values in zip(ShardInfo._fields, zip(*shards, strict=True), strict=True)
    }
    for field in ("tokens", "documents"):
        ends = np.cumsum(columns[field], dtype=np.uint64)
        columns[f"{field}_before"] = np.concatenate([np.zeros(1, np.uint64), ends[:-1]])
    return b"".join(np.array(columns[name], kind).tobytes() for name, kind in COLUMNS.items())


def names_bytes(names: Iterable[str]) -> bytes:
    """The table of a source's file names, sorted."""
    encoded = sorted(name.encode() for name in names)
    ends = np.cumsum([len(name) for name in encoded], dtype="<u8")
    return b"".join([np.array([len(encoded)], "<u8").tobytes(), ends.tobytes(), *encoded])


@dataclass(frozen=True)
class Names:
    """File names of a source; a file's number is its place among them."""

    ends: npt.NDArray[np.uint64]
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of files."""
        return len(self.ends)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps a table of names.

        Raises:
            DamagedError: it is absent, or of another size than it says.
        """
        data = _map(path)
        count = int(data[:8].view("<u8")[0]) if len(data) >= 8 else len(data)
        ends = data[8 : 8 + 8 * count].view("<u8") if 8 + 8 * count <= len(data) else data[:0].view("<u8")
        held = int(ends[-1]) if len(ends) else 0
        if len(ends) != count or len(data) != 8 + 8 * count + held:
            raise DamagedError(path, f"{len(data)} bytes do not hold the {count} names that it counts")
        return cls(ends, data[8 + 8 * count :])

    def __getitem__(self, number: int) -> str:
        """The name of a file."""
        start = int(self.ends[number - 1]) if number else 0
        return self.data[start : int(self.ends[number])].tobytes().decode()

    def number(self, name: str) -> int:
        """The number of a file.

        Raises:
            KeyError: no such file.
        """
        low, high, wanted = 0, len(self), name.encode()
        while low < high:
            middle = (low + high) // 2
            if self[middle].encode() < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self) or self[low] != name:
            raise KeyError(name)
        return low


def _map(path: Path) -> npt.NDArray[np.uint8]:
    """The file's bytes, mapped."""
    try:
        if not path.stat().st_size:
            return np.zeros(0, np.uint8)
        return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise DamagedError(path, f"cannot be read: {error.strerror}") from error
