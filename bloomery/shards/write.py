"""Writing shards: documents in the order of their keys -> NAME.bin, NAME.idx, NAME.side, in one pass.

    append(documents) -> tokens to disk, hashed as they pass; ids, lengths, origins, hosts are kept
    finish()          -> index and side file, and the names, which follow from the bytes

Tokens are never held: a shard costs about 60 bytes a document. Equal documents make equal files, so retries,
speculation and partitions change nothing. `write_dataset` writes a whole dataset in one process, with the
bytes that the stage `shard` writes on a cluster.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from awscrt.checksums import crc32c

from bloomery.artifacts.canonical import sha256
from bloomery.shards.bounds import cut
from bloomery.shards.dataset import (
    MANIFEST,
    SPLITS,
    Manifest,
    Policy,
    Totals,
    check_source,
    names_path,
    table_path,
)
from bloomery.shards.format import LONGEST, ShardError, index_bytes
from bloomery.shards.keys import Ids, keys, parse_ids
from bloomery.shards.side import BLOCK, ORIGIN, Domain, Origins, side_bytes
from bloomery.shards.table import ShardInfo, names_bytes, table_bytes

MOST_TOKENS = (1 << 32) - 1
"""Of a shard: positions in it are u32."""
HOST = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/?#@\s]*@)?(\[[0-9a-f:.]+\]|[^/?#:@*\s]+)", re.IGNORECASE)


def host(url: str | None) -> str:
    """The host of a URL in lower case; "" where there is none."""
    found = HOST.match(url or "")
    return found[1].lower() if found else ""


@dataclass(frozen=True)
class Documents:
    """Documents that follow one another in a shard."""

    ids: Ids
    """[documents, 16]."""
    tokens: npt.NDArray[np.integer]
    """Ids of all of them, one after the other: [tokens]."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each, at least one: [documents]."""
    bytes: int
    """UTF-8 bytes of their texts."""
    hosts: Sequence[str]
    """Host of each one's URL: [documents]."""
    origins: Origins
    """[documents] of ORIGIN."""

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ids)


class ShardWriter:
    """Writes one shard below a folder; nothing is visible under its name before it is whole.

    Args:
        folder: exists.
        policy: of the dataset: which ids there are, and how documents are ordered.
    """

    def __init__(self, folder: Path, policy: Policy) -> None:
        self._folder, self._vocab_size, self._seed = folder, policy.vocab_size, policy.seed
        self._dtype = np.dtype(policy.dtype)
        self._temporary = folder / f".tmp-{uuid.uuid4().hex}"
        self._file = open(self._temporary, "xb")  # noqa: SIM115  closed by finish, or by __exit__
        self._sha, self._blocks, self._crc, self._room = hashlib.sha256(), list[int](), 0, BLOCK
        self._parts: list[tuple[Ids, npt.NDArray[np.int64], Origins]] = []
        self._documents, self._tokens = Counter[str](), Counter[str]()
        self._bytes, self._last = 0, (-1, b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def append(self, documents: Documents) -> None:
        """Adds documents behind those before.

        Raises:
            ShardError: an id of a token outside the vocabulary, a document that is empty or too long, or one
                that is out of the order of (key, id).
        """
        if not len(documents):
            return
        self._check(documents)
        data = documents.tokens.astype(self._dtype, copy=False).view(np.uint8)
        self._file.write(data.data)
        self._sha.update(data.data)
        while len(data):
            piece, data = data[: self._room], data[self._room :]
            self._crc, self._room = crc32c(piece.data, self._crc), self._room - len(piece)
            if not self._room:
                self._end_block()
        for name, length in zip(documents.hosts, documents.lengths.tolist(), strict=True):
            self._documents[name] += 1
            self._tokens[name] += length
        self._bytes += documents.bytes
        self._parts.append((documents.ids.copy(), documents.lengths.copy(), documents.origins.copy()))

    def _end_block(self) -> None:
        self._blocks.append(self._crc)
        self._crc, self._room = 0, BLOCK

    def _check(self, documents: Documents) -> None:
        lengths, tokens = documents.lengths, documents.tokens
        bad = np.flatnonzero((lengths < 1) | (lengths > LONGEST))
        if len(bad):
            raise ShardError(
                f"document {documents.ids[bad[0]].tobytes().hex()} has {lengths[bad[0]]} tokens",
                f"1 .. {LONGEST} fit",
            )
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocab_size:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))[0])
            document = int(np.searchsorted(np.cumsum(lengths), at, "right"))
            raise ShardError(
                f"document {documents.ids[document].tobytes().hex()}: token {tokens[at]} is outside the "
                f"vocabulary of {self._vocab_size}",
                "encode the documents by the dataset's own tokenizer",
            )
        found = keys(documents.ids, self._seed)
        for number in np.flatnonzero(np.concatenate([[True], found[1:] <= found[:-1]])).tolist():
            before = (int(found[number - 1]), documents.ids[number - 1].tobytes()) if number else self._last
            if not before < (int(found[number]), documents.ids[number].tobytes()):
                raise ShardError(
                    f"document {documents.ids[number].tobytes().hex()} is out of the order of (key, id)",
                    "sort the documents by key and id, and give each id once",
                )
        self._last = (int(found[-1]), documents.ids[-1].tobytes())

    def finish(self) -> ShardInfo:
        """Writes index and side file, and gives the three their names.

        Raises:
            ShardError: no document, or more tokens than positions.
        """
        if not self._parts:
            raise ShardError("a shard without a document", "leave it out")
        ids, lengths, origins = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        if int(lengths.sum()) > MOST_TOKENS:
            raise ShardError(f"a shard of {lengths.sum()} tokens", "lower corpus.shards.target_bytes")
        if self._room < BLOCK:
            self._end_block()
        self._file.close()
        domains = {name: Domain(name, n, self._tokens[name]) for name, n in self._documents.items()}
        index = index_bytes(lengths, self._dtype)
        side = side_bytes(np.array(self._blocks, "<u4"), ids, lengths, origins, domains)
        digests = self._sha.hexdigest(), sha256(index), sha256(side)
        name = sha256("".join(digests).encode())[:32]
        for data, suffix in ((index, "idx"), (side, "side")):
            _write(self._folder / f"{name}.{suffix}", data)
        os.replace(self._temporary, self._folder / f"{name}.bin")
        first = int(keys(ids[:1], self._seed)[0])
        return ShardInfo(name, first, len(ids), int(lengths.sum()), self._bytes, len(side), *digests)


def _write(path: Path, data: bytes) -> None:
    temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
    temporary.write_bytes(data)
    os.replace(temporary, path)


# --- a whole dataset ------------------------------------------------------------------------------


class Document(NamedTuple):
    """A document to write."""

    id: str
    """32 hexadecimal digits."""
    tokens: Sequence[int] | npt.NDArray[np.integer]
    """With the separator at its end."""
    bytes: int = 0
    """Of its text."""
    url: str | None = None
    path: str = ""
    """Of its file."""
    member: int | None = None
    offset: int = 0
    length: int = 0


def write_dataset(
    folder: Path,
    splits: Mapping[str, Mapping[str, Iterable[Document]]],
    policy: Policy,
    *,
    table: str = "0" * 64,
    target_bytes: int = 64 << 20,
) -> str:
    """Writes a dataset below `folder`, and returns its digest.

    Args:
        folder: is made.
        splits: split -> source -> documents, in any order.
        policy: what the ids mean.
        table: digest of the documents' table.
        target_bytes: that a shard aims at.

    Raises:
        ShardError: a document that cannot be written.
    """
    held = {(split, source): list(found) for split in splits for source, found in splits[split].items()}
    paths: dict[str, set[str]] = {}
    for (_, source), documents in held.items():
        paths.setdefault(check_source(source), set()).update(document.path for document in documents)
    names = {source: names_bytes(found) for source, found in paths.items()}
    shards: Shards = {}
    for (split, source), documents in sorted(held.items()):
        target = folder / split / source
        target.mkdir(parents=True, exist_ok=True)
        numbers = {path: number for number, path in enumerate(sorted(paths[source], key=str.encode))}
        shards[split, source] = _write_stream(target, documents, numbers, policy, target_bytes)
    for name, data in dataset_files(policy, table, shards, names).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return sha256(data)


def _write_stream(
    folder: Path, documents: list[Document], numbers: Mapping[str, int], policy: Policy, target_bytes: int
) -> list[ShardInfo]:
    found = keys(parse_ids([document.id for document in documents]), policy.seed)
    order = sorted(range(len(documents)), key=lambda number: (int(found[number]), documents[number].id))
    ordered, found = [documents[number] for number in order], found[order]
    sizes = np.array([len(document.tokens) for document in ordered], np.int64)
    least = cut(found, sizes, shards_of(int(sizes.sum()), policy.dtype, target_bytes))
    firsts = np.searchsorted(found, least).tolist()
    infos = []
    for start, stop in zip(firsts, [*firsts[1:], len(ordered)], strict=True):
        with ShardWriter(folder, policy) as writer:
            writer.append(_columns(ordered[start:stop], numbers))
            infos.append(writer.finish())
    return infos


def _columns(documents: list[Document], numbers: Mapping[str, int]) -> Documents:
    origins = [(-1 if d.member is None else d.member, d.offset, d.length, numbers[d.path]) for d in documents]
    return Documents(
        ids=parse_ids([document.id for document in documents]),
        tokens=np.concatenate([np.asarray(document.tokens, np.int64) for document in documents]),
        lengths=np.array([len(document.tokens) for document in documents], np.int64),
        bytes=sum(document.bytes for document in documents),
        hosts=[host(document.url) for document in documents],
        origins=np.array(origins, ORIGIN),
    )


def shards_of(tokens: int, dtype: str, target_bytes: int) -> int:
    """Into how many shards a stream of `tokens` is cut, so that each holds about `target_bytes`."""
    return max(1, round(tokens * np.dtype(dtype).itemsize / target_bytes))


Shards = dict[tuple[str, str], list[ShardInfo]]
"""(split, source) -> its shards."""


def dataset_files(policy: Policy, table: str, shards: Shards, names: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a dataset beside its shards: tables, and manifest.json as the last.

    Args:
        policy: what the ids mean.
        table: digest of the documents' table.
        shards: in any order.
        names: source -> table of its files' names.
    """
    files = {names_path(source): data for source, data in sorted(names.items())}
    streams: dict[str, dict[str, Totals]] = {split: {} for split in SPLITS}
    for (split, source), infos in sorted(shards.items()):
        if infos:
            files[table_path(split, source)] = data = table_bytes(sorted(infos, key=lambda i: i.first_key))
            streams[split][source] = Totals(
                documents=sum(info.documents for info in infos),
                tokens=sum(info.tokens for info in infos),
                bytes=sum(info.bytes for info in infos),
                shards=len(infos),
                sha256=sha256(data),
            )
    digests = {source: sha256(data) for source, data in names.items()}
    manifest = Manifest(policy=policy, table=table, streams=streams, files=digests)
    return files | {MANIFEST: manifest.to_bytes()}
