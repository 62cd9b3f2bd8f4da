"""An open shard: tokens, index and side file that agree; each MiB of tokens is checked when first touched.

open    .idx and .side have the sha256 of the table, .bin its size, and the three count the same
verify  CRC32C of the blocks that hold given tokens, each once: a flipped bit is found before it is used
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from awscrt.checksums import crc32c

from bloomery.artifacts.digests import file_digest
from bloomery.shards.format import DamagedError, Tokens, index_bytes, index_size
from bloomery.shards.side import BLOCK, Side
from bloomery.shards.table import ShardInfo


@dataclass(frozen=True)
class Shard:
    """A shard; everything but the bitmap is mapped, not held."""

    path: Path
    """Of .bin."""
    side_path: Path
    info: ShardInfo
    tokens: Tokens
    """Ids of all documents: [tokens]. Call `verify` before use."""
    side: Side
    verified: npt.NDArray[np.bool_]
    """Blocks of .bin whose CRC32C was found right: [blocks]."""

    def __len__(self) -> int:
        """Number of documents."""
        return self.info.documents

    @classmethod
    def open(cls, folder: Path, info: ShardInfo, dtype: np.dtype) -> Self:
        """Opens the shard `info` below `folder`.

        Raises:
            DamagedError: a file is absent, or not what the table says.
        """
        try:
            return cls._open(folder, info, dtype)
        except (OSError, ValueError) as error:  # removed or cut short meanwhile, by who fetches it again
            raise DamagedError(folder / f"{info.name}.bin", f"cannot be opened: {error}") from error

    @classmethod
    def _open(cls, folder: Path, info: ShardInfo, dtype: np.dtype) -> Self:
        path = folder / f"{info.name}.bin"
        _expect(path, _size(path), info.tokens * dtype.itemsize, "bytes")
        index, side = path.with_suffix(".idx"), path.with_suffix(".side")
        _expect(index, _size(index), index_size(info.documents), "bytes")
        _expect(index, file_digest(index), info.idx_sha256, "sha256")
        found = open_side(folder, info)
        starts = found.starts.astype(np.int64)
        lengths = starts[1:] - starts[:-1]
        _expect(index, hashlib.sha256(index_bytes(lengths, dtype)).hexdigest(), info.idx_sha256, "lengths of")
        tokens: Tokens = np.memmap(path, dtype, mode="r").view(np.ndarray)
        return cls(path, side, info, tokens, found, np.zeros(len(found.blocks), bool))

    def check_sizes(self) -> None:
        """Checks that no mapped file was cut short since it was opened: reading on would kill the process.

        Raises:
            DamagedError: names the file. One that was removed meanwhile stays whole for who has it open.
        """
        for path, expected in ((self.path, self.tokens.nbytes), (self.side_path, self.info.side_bytes)):
            try:
                found = path.stat().st_size
            except FileNotFoundError:
                continue
            _expect(path, found, expected, "bytes")

    def verify(self, starts: npt.NDArray[np.integer], stops: npt.NDArray[np.integer]) -> None:
        """Checks the blocks that hold the tokens [start, stop) of each range, unless they were before.

        Args:
            starts: positions in the shard: [ranges].
            stops: [ranges], each beyond its start.

        Raises:
            DamagedError: names the block.
        """
        if self.verified.all():
            return
        size = self.tokens.itemsize
        first, last = starts * size // BLOCK, (stops * size - 1) // BLOCK
        touched = np.concatenate([first, last])
        if (last - first > 1).any():  # ranges longer than a block
            touched = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
        if self.verified[touched].all():
            return
        touched = np.unique(touched)
        data = self.tokens.view(np.uint8)
        for block in touched[~self.verified[touched]].tolist():
            found = crc32c(data[block * BLOCK : (block + 1) * BLOCK].data)
            if found != int(self.side.blocks[block]):
                raise DamagedError(
                    self.path,
                    f"MiB {block} has CRC32C {found:08x}, expected {int(self.side.blocks[block]):08x}",
                )
            self.verified[block] = True

    def damaged(self) -> list[int]:
        """Numbers of all blocks that are not what was written."""
        data = self.tokens.view(np.uint8)
        return [
            block
            for block, expected in enumerate(self.side.blocks.tolist())
            if crc32c(data[block * BLOCK : (block + 1) * BLOCK].data) != expected
        ]

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop) of the shard, verified: a view of the file.

        Raises:
            DamagedError: a block of it is not what was written.
        """
        if start < stop:
            self.verify(np.array([start]), np.array([stop]))
        return self.tokens[start:stop]

    def document(self, number: int) -> Tokens:
        """Ids of one document, verified: [its length], a view of the file."""
        return self.read(int(self.side.starts[number]), int(self.side.starts[number + 1]))


def open_side(folder: Path, info: ShardInfo) -> Side:
    """Opens the side file of the shard `info` below `folder`.

    Raises:
        DamagedError: it is absent, or not what the table says.
    """
    path = folder / f"{info.name}.side"
    _expect(path, _size(path), info.side_bytes, "bytes")
    try:
        found = file_digest(path)
    except OSError as error:
        raise DamagedError(path, f"cannot be read: {error.strerror}") from error
    _expect(path, found, info.side_sha256, "sha256")
    side = Side.open(path)
    _expect(path, (side.tokens, len(side.ids)), (info.tokens, info.documents), "tokens, documents")
    return side


def _expect(path: Path, found: object, expected: object, what: str) -> None:
    if found != expected:
        raise DamagedError(path, f"{what} {found}, expected {expected}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DamagedError(path, f"cannot be read: {error.strerror}") from error
