"""The side file of a shard: what a reader needs beside the tokens, each array where it is mapped from.

    NAME.side   64-byte header | sections, each padded to 8 bytes, little-endian
                header: b"BLMRYSID", u32 version = 1, u32 bytes a block, u64 documents, u64 tokens,
                        u64 blocks, u64 distinct lengths, u64 domains, u64 bytes of domain names

    blocks      u32 [blocks]          CRC32C of each MiB of .bin
    ids         16 bytes [documents]  in the order of (key, id), the shard's own: a search by key finds one
    starts      u32 [documents + 1]   position in the shard where each document begins; the last is its end
    by_length   u32 [documents]       document numbers in the order of (length, number): what packing reads
    lengths     u32 [distinct]        the length histogram, ascending
    counts      u32 [distinct]
    origins     28 bytes [documents]  where it was read: i64 member (-1: none), u64 offset, u64 length,
                                      u32 file
    domain_documents, domain_tokens   u64 [domains]; the greatest by tokens, "" is without URL, "*" the rest
    domain_ends u32 [domains]         ends of their names
    names       UTF-8

The arrays are views of the mapped file, so an open shard costs no memory of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bloomery.shards.format import DamagedError
from bloomery.shards.keys import ID_BYTES, Ids

MAGIC = b"BLMRYSID"
HEADER = struct.Struct("<8sIIQQQQQQ")
VERSION = 1
BLOCK = 1 << 20
"""Bytes of .bin that one CRC32C is of."""
DOMAINS = 256
"""Domains that are counted on their own."""
REST = "*"
ORIGIN = np.dtype([("member", "<i8"), ("offset", "<u8"), ("length", "<u8"), ("file", "<u4")])
"""Where a document was read: a range of the decoded bytes of a member of a file; of Parquet its rows."""

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Origins = npt.NDArray[np.void]


class Domain(NamedTuple):
    """What a shard holds of a host."""

    name: str
    documents: int
    tokens: int


class _Header(NamedTuple):
    documents: int
    tokens: int
    blocks: int
    distinct: int
    domains: int
    names: int

    def sections(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """dtype and length of each section, in order."""
        u4, u8 = np.dtype("<u4"), np.dtype("<u8")
        return {
            "blocks": (u4, self.blocks),
            "ids": (np.dtype("u1"), ID_BYTES * self.documents),
            "starts": (u4, self.documents + 1),
            "by_length": (u4, self.documents),
            "lengths": (u4, self.distinct),
            "counts": (u4, self.distinct),
            "origins": (ORIGIN, self.documents),
            "domain_documents": (u8, self.domains),
            "domain_tokens": (u8, self.domains),
            "domain_ends": (u4, self.domains),
            "names": (np.dtype("u1"), self.names),
        }

    def size(self) -> int:
        """Bytes of the file."""
        return HEADER.size + sum(_padded(kind.itemsize * n) for kind, n in self.sections().values())


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


def side_bytes(
    blocks: U32, ids: Ids, lengths: npt.NDArray[np.int64], origins: Origins, domains: Mapping[str, Domain]
) -> bytes:
    """A side file.

    Args:
        blocks: CRC32C of each block of .bin: [blocks].
        ids: [documents, 16].
        lengths: tokens of each document: [documents].
        origins: [documents] of ORIGIN.
        domains: every host of the shard.
    """
    distinct, counts = np.unique(lengths, return_counts=True)
    shown = _greatest(domains)
    names = [domain.name.encode() for domain in shown]
    header = _Header(
        len(ids), int(lengths.sum()), len(blocks), len(distinct), len(shown), sum(map(len, names))
    )
    values = {
        "blocks": blocks,
        "ids": ids.reshape(-1),
        "starts": np.concatenate([[0], np.cumsum(lengths)]),
        "by_length": np.argsort(lengths, kind="stable"),
        "lengths": distinct,
        "counts": counts,
        "origins": origins,
        "domain_documents": [domain.documents for domain in shown],
        "domain_tokens": [domain.tokens for domain in shown],
        "domain_ends": np.cumsum([len(name) for name in names]),
        "names": np.frombuffer(b"".join(names), np.uint8),
    }
    parts = [HEADER.pack(MAGIC, VERSION, BLOCK, *header)]
    for name, (kind, _) in header.sections().items():
        data = np.asarray(values[name]).astype(kind, copy=False).tobytes()
        parts += [data, bytes(_padded(len(data)) - len(data))]
    return b"".join(parts)


def _greatest(domains: Mapping[str, Domain]) -> list[Domain]:
    ordered = sorted(domains.values(), key=lambda domain: (-domain.tokens, domain.name))
    rest = ordered[DOMAINS:]
    if rest:
        documents, tokens = sum(domain.documents for domain in rest), sum(domain.tokens for domain in rest)
        return [*ordered[:DOMAINS], Domain(REST, documents, tokens)]
    return ordered


@dataclass(frozen=True)
class Side:
    """An open side file; the arrays are as in the module's docstring."""

    tokens: int
    blocks: U32
    ids: Ids
    starts: U32
    by_length: U32
    lengths: U32
    counts: U32
    origins: Origins
    domain_documents: U64
    domain_tokens: U64
    domain_ends: U32
    names: npt.NDArray[np.uint8]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps a side file. Whether its bytes are the ones that were written is not seen here.

        Raises:
            DamagedError: no side file, or one of another size than its header says.
        """
        try:
            data = np.memmap(path, np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise DamagedError(path, f"cannot be mapped: {error}") from error
        if len(data) < HEADER.size:
            raise DamagedError(path, f"{len(data)} bytes, fewer than the header's {HEADER.size}")
        magic, version, block, *counts = HEADER.unpack(data[: HEADER.size].tobytes())
        header = _Header(*counts)
        if (magic, version, block) != (MAGIC, VERSION, BLOCK) or max(header) > 1 << 40:
            raise DamagedError(
                path, f"header says {magic!r}, version {version}, {block} bytes a block, {header}"
            )
        if not header.documents:
            raise DamagedError(path, "holds no document; no shard is empty")
        if len(data) != header.size():
            raise DamagedError(path, f"{len(data)} bytes, its header says {header.size()}")
        at, found = HEADER.size, {}
        for name, (kind, count) in header.sections().items():
            size = kind.itemsize * count
            found[name] = data[at : at + size].view(np.ndarray).view(kind)
            at += _padded(size)
        ids = found.pop("ids").reshape(-1, ID_BYTES)
        return cls(tokens=header.tokens, ids=ids, **found)

    def domains(self) -> list[Domain]:
        """What the shard holds of each host, by tokens."""
        ends = self.domain_ends.tolist()
        text = self.names.tobytes()
        names = [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
        counts = (self.domain_documents.tolist(), self.domain_tokens.tolist())
        return [Domain(*row) for row in zip(names, *counts, strict=True)]
