"""A dataset of token shards: one folder, one small root that all of it hangs on.

    manifest.json                         policy, totals of each stream, sha256 of each table; its own sha256
      |                                   is the dataset's digest
      +- tables/<split>/<source>.shards   a row a shard: sizes, first key, sha256 of its three files
      |    +- <split>/<source>/NAME.bin .idx .side
      +- tables/files/<source>            names of the files that the source's documents were read from

A *stream* is what a split holds of a source: its shards one after the other, in the order of the documents'
keys. Opening costs the same for ten shards and ten million: tables are mapped, shards opened when asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.manifest import Artifact
from bloomery.config.base import Config
from bloomery.shards.format import DamagedError, ShardError, token_dtype
from bloomery.shards.shard import Shard
from bloomery.shards.table import Names, ShardTable

MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")
SOURCE = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""Names of sources, which are names of folders, too."""
SHA256 = r"^[0-9a-f]{64}$"


class Policy(Config):
    """What token ids mean, and how documents are put in order."""

    tokenizer: str = Field(pattern=SHA256, description="sha256 of tokenizer.json")
    vocab_size: int = Field(gt=0, le=1 << 31, description="ids are below it")
    dtype: Literal["<u2", "<i4"] = Field(description="of the ids, as numpy names it")
    eos_id: int = Field(ge=0, description="the separator: last token of each document")
    bos_id: None = Field(None, description="no token is put before a document")
    key: Literal["xxhash64(seed, id) ^ 2^63"] = Field(
        "xxhash64(seed, id) ^ 2^63", description="key function of documents"
    )
    seed: int = Field(1, ge=0, lt=1 << 63, description="of the key function")

    @model_validator(mode="after")
    def _holds(self) -> Self:
        largest = int(np.iinfo(self.dtype).max)
        if not self.eos_id < self.vocab_size <= largest + 1:
            raise ValueError(
                f"vocab_size {self.vocab_size}, eos_id {self.eos_id}: {self.dtype} holds ids up to {largest},"
                " and the separator must be one of them"
            )
        return self

    @classmethod
    def of(cls, tokenizer: str, vocab_size: int, eos_id: int, seed: int) -> Self:
        """The policy of a tokenizer, with the dtype that Megatron takes for its vocabulary."""
        dtype = token_dtype(vocab_size).str
        return cls(tokenizer=tokenizer, vocab_size=vocab_size, dtype=dtype, eos_id=eos_id, seed=seed)


class Totals(Config):
    """What a stream holds."""

    documents: int
    tokens: int
    bytes: int
    """UTF-8 bytes of the documents' texts."""
    shards: int
    sha256: str = Field(pattern=SHA256)
    """Of its table."""


class Manifest(Config):
    """The root of a dataset."""

    version: Literal[1] = 1
    policy: Policy
    table: str = Field(pattern=SHA256)
    """Digest of the table of documents that the shards were made from."""
    streams: dict[str, dict[str, Totals]]
    """split -> source -> what it holds; a stream without documents is left out."""
    files: dict[str, str]
    """source -> sha256 of the table of its files' names."""

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical(self.model_dump(mode="json"))

    @property
    def digest(self) -> str:
        """The dataset's digest."""
        return sha256(self.to_bytes())

    def totals(self, split: str) -> dict[str, int]:
        """documents, tokens, bytes and shards of a split."""
        found = self.streams[split].values()
        return {
            name: sum(getattr(stream, name) for stream in found)
            for name in ("documents", "tokens", "bytes", "shards")
        }


def table_path(split: str, source: str) -> str:
    """Where the table of a stream stands in the dataset's folder."""
    return f"tables/{split}/{source}.shards"


def names_path(source: str) -> str:
    """Where the names of a source's files stand in the dataset's folder."""
    return f"tables/files/{source}"


def check_source(name: str) -> str:
    """The name, if a folder can have it.

    Raises:
        ShardError: it could not.
    """
    if not SOURCE.fullmatch(name):
        raise ShardError(
            f"{name!r} is no name of a source",
            "use a-z, 0-9, '.', '_' and '-', and begin with a letter or a digit",
        )
    return name


@dataclass(frozen=True)
class Stream:
    """What a split holds of a source, as one sequence of documents and of tokens."""

    split: str
    source: str
    folder: Path
    """Of its shards."""
    table: ShardTable
    dtype: np.dtype[Any]

    @property
    def tokens(self) -> int:
        """Tokens of all its shards."""
        return self._total(self.table.tokens_before, self.table.tokens)

    @property
    def documents(self) -> int:
        """Documents of all its shards."""
        return self._total(self.table.documents_before, self.table.documents)

    def _total(self, before: npt.NDArray[np.uint64], held: npt.NDArray[np.uint64]) -> int:
        return int(before[-1]) + int(held[-1]) if len(self.table) else 0

    def start(self, number: int) -> int:
        """Position of the first token of a shard; of the last one's successor, all tokens."""
        return int(self.table.tokens_before[number]) if number < len(self.table) else self.tokens

    def shards_at(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Numbers of the shards that hold the tokens at `positions` of the stream: [positions]."""
        wanted = positions.astype(np.uint64)  # another type would make the search copy the column
        return np.searchsorted(self.table.tokens_before, wanted, "right") - 1

    def shard(self, number: int) -> Shard:
        """Opens a shard, with its checks.

        Raises:
            DamagedError: a file of it is not what the table says, or the table does not add up there.
        """
        table = self.table
        for before, held in (
            (table.tokens_before, table.tokens),
            (table.documents_before, table.documents),
        ):
            end = int(before[number]) + int(held[number])
            if number + 1 < len(table) and end != int(before[number + 1]):
                raise DamagedError(
                    self.folder,
                    f"table: shard {number} ends at {end}, the next begins at {before[number + 1]}",
                )
        return Shard.open(self.folder, table[number], self.dtype)


@dataclass(frozen=True)
class Dataset:
    """An open dataset."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path, digest: str | None = None) -> Self:
        """Opens the dataset in `folder`; its root and tables are hashed, its shards when they are opened.

        Args:
            folder: with manifest.json.
            digest: of the dataset, if it is known.

        Raises:
            DamagedError: root or a table is absent, or not what was written.
        """
        path = folder / MANIFEST
        try:
            data = path.read_bytes()
            manifest = Manifest.model_validate(json.loads(data))
        except OSError as error:
            raise DamagedError(path, f"cannot be read: {error.strerror}") from error
        except (ValidationError, ValueError) as error:
            raise DamagedError(path, f"no manifest of token shards: {error}") from error
        if digest and sha256(data) != digest:
            raise DamagedError(path, f"sha256 {sha256(data)}, expected {digest}")
        dataset = cls(folder, manifest)
        for name, expected in dataset.tables().items():
            table = folder / name
            found = file_digest(table) if table.is_file() else "of no file"
            if found != expected:
                raise DamagedError(table, f"sha256 {found}, expected {expected}")
        return dataset

    @classmethod
    def fetch(cls, shards: Artifact, cache: Path) -> Self:
        """Opens a dataset with its root and tables only: shards stay in the store until they are fetched."""
        shards.store.fetch(f"{shards.place}/tables", cache)
        path = shards.store.fetch(f"{shards.place}/{MANIFEST}", cache)
        return cls.open(path.parent, shards.output.digest)

    def tables(self) -> dict[str, str]:
        """Path below the folder and sha256 of each table."""
        tables = {names_path(source): digest for source, digest in self.manifest.files.items()}
        for split, streams in self.manifest.streams.items():
            tables |= {table_path(split, source): found.sha256 for source, found in streams.items()}
        return tables

    def stream(self, split: str, source: str) -> Stream:
        """The stream of a source in a split.

        Raises:
            ShardError: there is none.
            DamagedError: its table does not hold what the manifest says.
        """
        held = self.manifest.streams.get(split, {})
        if source not in held:
            raise ShardError(
                f"{self.folder}: split {split!r} holds nothing of source {source!r}",
                f"it has {', '.join(held) or 'no source'}",
            )
        path = self.folder / table_path(split, source)
        folder, dtype = self.folder / split / source, np.dtype(self.manifest.policy.dtype)
        stream, totals = Stream(split, source, folder, ShardTable.open(path), dtype), held[source]
        found = (len(stream.table), stream.documents, stream.tokens)
        expected = (totals.shards, totals.documents, totals.tokens)
        if found != expected:
            raise DamagedError(path, f"shards, documents, tokens {found}, the manifest says {expected}")
        return stream

    def streams(self, *splits: str) -> list[Stream]:
        """The streams of the splits (none: of all), by split and source."""
        return [
            self.stream(split, source)
            for split in splits or SPLITS
            for source in sorted(self.manifest.streams[split])
        ]

    def names(self, source: str) -> Names:
        """Names of the files of a source."""
        return Names.open(self.folder / names_path(source))


def check_dataset(folder: Path, digest: str | None = None) -> Dataset:
    """Opens the dataset, and hashes every file of it.

    Raises:
        DamagedError: names the first file that is absent, or not what was written.
    """
    dataset = Dataset.open(folder, digest)
    for path, expected in shard_files(dataset):
        found = file_digest(path) if path.is_file() else "of no file"
        if found != expected:
            raise DamagedError(path, f"sha256 {found}, expected {expected}")
    return dataset


def shard_files(dataset: Dataset) -> Iterator[tuple[Path, str]]:
    """Path and sha256 of each file of each shard."""
    for stream in dataset.streams():
        for number in range(len(stream.table)):
            for name, expected in stream.table[number].files().items():
                yield stream.folder / name, expected
