"""The payload: one Megatron `.bin/.idx` pair a shard, which Megatron, NeMo and their kin read as it is.

    NAME.bin   token ids of every document, one after the other, little-endian, uint16 or int32; no header
    NAME.idx   34-byte header | i32 length and i64 byte offset of each document | i64 document index
               header: b"MMIDIDX\\0\\0", u64 version = 1, u8 dtype code, u64 sequences, u64 document indices

Layout of Megatron-LM, megatron/core/datasets/indexed_dataset.py; one document is one sequence, so its
document index is 0, 1, ..., documents.
"""

from __future__ import annotations

import struct
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
LONGEST = (1 << 31) - 1
"""Most tokens of a document: the index holds its length as i32."""
AGAIN = "fetch it again from the store, or make the shards again"

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
Lengths = npt.NDArray[np.int64]


class ShardError(BloomeryError):
    """Shards that cannot be written, or that do not go with what they are asked for."""


class DamagedError(ShardError):
    """A file of a dataset does not hold what was written: another copy of it may.

    Args:
        path: the file.
        what: what was found, and what was expected.
    """

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}", AGAIN)
        self.path = path


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """The dtype of ids of a vocabulary: uint16 where Megatron takes it, else int32."""
    return np.dtype("<u2") if vocab_size < UINT16_VOCABULARY else np.dtype("<i4")


def index_bytes(lengths: Lengths, dtype: np.dtype[Any]) -> bytes:
    """The `.idx` of documents of these lengths: [documents]."""
    code = next(code for code, known in CODES.items() if known == dtype)
    return b"".join(
        [
            HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1),
            lengths.astype("<i4").tobytes(),
            ((np.cumsum(lengths) - lengths) * dtype.itemsize).astype("<i8").tobytes(),
            np.arange(len(lengths) + 1, dtype="<i8").tobytes(),
        ]
    )


def index_size(documents: int) -> int:
    """Bytes of an `.idx`."""
    return HEADER.size + 20 * documents + 8
