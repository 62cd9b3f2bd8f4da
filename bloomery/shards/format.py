"""The token format: one Megatron `.bin/.idx` pair a shard. numpy only: Spark writes it, torch reads it.

    NAME.bin   token ids of every document, one after the other, little-endian, uint16 or int32; no header
    NAME.idx   34-byte header | i32 length and i64 byte offset of each document | i64 document index
               header: b"MMIDIDX\\0\\0", u64 version = 1, u8 dtype code, u64 sequences, u64 document indices

Layout of Megatron-LM, megatron/core/datasets/indexed_dataset.py; one document is one sequence, so its
document index is 0, 1, ..., documents. The name follows from the bytes, so equal shards of two attempts are
one file.
"""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.errors import BloomeryError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1
CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
"""Megatron's dtype codes of the two dtypes in use."""
UINT16_VOCABULARY = 65_500
"""Megatron writes uint16 below this vocabulary size."""

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


class ShardError(BloomeryError):
    """A shard that cannot be written, or whose files are not what its header says."""


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """The dtype of ids of a vocabulary: uint16 where Megatron takes it, else int32."""
    return np.dtype("<u2") if vocab_size < UINT16_VOCABULARY else np.dtype("<i4")


@dataclass(frozen=True)
class ShardInfo:
    """What was written."""

    name: str
    """First 32 hex digits of sha256(sha256 of .bin, sha256 of .idx): the files' stem."""
    documents: int
    tokens: int
    bin_sha256: str
    idx_sha256: str


def write_shard(folder: Path, documents: Iterable[npt.NDArray[np.integer]], dtype: np.dtype) -> ShardInfo:
    """Writes `documents` (1-D arrays of ids, in order) as one shard below `folder`; each file appears whole.

    Raises:
        ShardError: an id that `dtype` cannot hold, an empty document, or one of 2^31 tokens and more.
    """
    code = next(code for code, known in CODES.items() if known == dtype)
    temporary = {kind: folder / f".tmp-{uuid.uuid4().hex}.{kind}" for kind in ("bin", "idx")}
    try:
        lengths, bin_sha256 = _write_tokens(temporary["bin"], documents, dtype)
        header = HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1)
        offsets = _offsets(lengths, dtype)
        index = b"".join(
            [
                header,
                lengths.astype("<i4").tobytes(),
                offsets.astype("<i8").tobytes(),
                np.arange(len(lengths) + 1, dtype="<i8").tobytes(),
            ]
        )
        temporary["idx"].write_bytes(index)
        idx_sha256 = hashlib.sha256(index).hexdigest()
        name = hashlib.sha256(f"{bin_sha256}{idx_sha256}".encode()).hexdigest()[:32]
        for kind, path in temporary.items():
            os.replace(path, folder / f"{name}.{kind}")
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    return ShardInfo(name, len(lengths), int(lengths.sum()), bin_sha256, idx_sha256)


def _write_tokens(
    path: Path, documents: Iterable[npt.NDArray[np.integer]], dtype: np.dtype
) -> tuple[npt.NDArray[np.int64], str]:
    limits, sha, lengths = np.iinfo(dtype), hashlib.sha256(), []
    with open(path, "xb") as file:
        for number, tokens in enumerate(documents):
            if not 0 < len(tokens) < 1 << 31:
                raise ShardError(
                    f"document {number} of a shard has {len(tokens)} tokens", "1 .. 2^31 - 1 fit"
                )
            if tokens.min() < 0 or tokens.max() > limits.max:
                raise ShardError(
                    f"document {number} of a shard: ids {tokens.min()} .. {tokens.max()} do not fit {dtype}",
                    "choose the dtype by token_dtype(vocab_size)",
                )
            data = tokens.astype(dtype).tobytes()
            file.write(data)
            sha.update(data)
            lengths.append(len(tokens))
    return np.array(lengths, dtype=np.int64), sha.hexdigest()


def _offsets(lengths: npt.NDArray[np.int64], dtype: np.dtype) -> npt.NDArray[np.int64]:
    """Byte offset of each document: [documents]."""
    return (np.cumsum(lengths) - lengths) * dtype.itemsize


@dataclass(frozen=True)
class Shard:
    """An open shard; its tokens are memory-mapped, so that opening costs the index only."""

    name: str
    tokens: Tokens
    """Ids of all documents: [tokens]."""
    lengths: npt.NDArray[np.int32]
    """Tokens of each document: [documents]."""
    starts: npt.NDArray[np.int64]
    """Position in `tokens` where each document starts: [documents]."""

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def document(self, number: int) -> Tokens:
        """Ids of one document: [its length], a view of the file."""
        start = int(self.starts[number])
        return self.tokens[start : start + int(self.lengths[number])]


def open_shard(folder: Path, name: str) -> Shard:
    """Opens NAME.bin and NAME.idx below `folder`, and checks that header, index and sizes agree.

    Raises:
        ShardError: names the file and what was found and expected.
    """
    index, payload = folder / f"{name}.idx", folder / f"{name}.bin"
    dtype, lengths, offsets = read_index(index)
    if not np.array_equal(offsets, _offsets(lengths.astype(np.int64), dtype)):
        raise _broken(index, "its offsets are not the sums of its lengths")
    tokens, expected = int(lengths.sum(dtype=np.int64)), int(lengths.sum(dtype=np.int64)) * dtype.itemsize
    size = _size(payload)
    if size != expected:
        raise _broken(payload, f"{size} bytes, expected {expected} for {tokens} tokens of {dtype}")
    ids: Tokens = np.memmap(payload, dtype, mode="r") if tokens else np.zeros(0, dtype)
    return Shard(name, ids, lengths, offsets // dtype.itemsize)


def read_index(path: Path) -> tuple[np.dtype, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """dtype of the payload, lengths [documents] and byte offsets [documents] that an `.idx` holds.

    Raises:
        ShardError: not such an index, or cut short.
    """
    size = _size(path)
    if size < HEADER.size:
        raise _broken(path, f"{size} bytes, fewer than the header's {HEADER.size}")
    with open(path, "rb") as file:
        magic, version, code, sequences, documents = HEADER.unpack(file.read(HEADER.size))
    if (magic, version) != (MAGIC, VERSION) or code not in CODES or documents != sequences + 1:
        raise _broken(
            path, f"header says {magic!r}, version {version}, dtype {code}, {sequences}, {documents}"
        )
    expected = HEADER.size + 12 * sequences + 8 * documents
    if size != expected:
        raise _broken(path, f"{size} bytes, expected {expected} for {sequences} documents")
    lengths = np.fromfile(path, "<i4", sequences, offset=HEADER.size)
    offsets = np.fromfile(path, "<i8", sequences, offset=HEADER.size + 4 * sequences)
    return CODES[code], lengths, offsets


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error


def _broken(path: Path, what: str) -> ShardError:
    return ShardError(f"shard file {path}: {what}", "fetch it again from the store, or make the shards again")
