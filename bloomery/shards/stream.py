"""A split as one run of tokens, cut into sequences: what held-out evaluation reads.

    source a: shard 0 | shard 1 | source b: shard 0 ...  ->  t0 t1 t2 ...
    sequence i = tokens [i*L, i*L + L], L + 1 of them

Neighbours share one token, so each token but the first is a target exactly once. Where documents begin is
taken from the shards' side files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bloomery.shards.dataset import Dataset
from bloomery.shards.format import ShardError
from bloomery.shards.reader import Fetch, InPlace, Shards


class Sequences(NamedTuple):
    """Some sequences of L tokens."""

    tokens: npt.NDArray[np.int64]
    """Each with the token after it: [N, L + 1]."""
    positions: npt.NDArray[np.int64]
    """Of each of the L tokens in its document, or in the part of it that the sequence holds: [N, L]."""


@dataclass(frozen=True)
class TokenStream:
    """All tokens of one split, source after source in the order of their names."""

    streams: tuple[Shards, ...]
    ends: npt.NDArray[np.int64]
    """Position where each stream ends: [streams]."""
    vocab_size: int

    @classmethod
    def open(cls, folder: Path, split: str) -> Self:
        """Opens a split of the dataset in `folder`.

        Raises:
            DamagedError: root or a table is not what was written.
        """
        return cls.of(Dataset.open(folder), split)

    @classmethod
    def of(cls, dataset: Dataset, split: str, fetch: Fetch = InPlace()) -> Self:  # noqa: B008  no state
        """A split of an open dataset, whose shards `fetch` brings."""
        streams = tuple(Shards(stream, fetch) for stream in dataset.streams(split))
        ends = np.cumsum([shards.stream.tokens for shards in streams], dtype=np.int64)
        return cls(streams, ends, dataset.manifest.policy.vocab_size)

    def __len__(self) -> int:
        """Tokens of the split."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def sequences(self, length: int) -> int:
        """Sequences of `length` tokens and their targets; a shorter tail is not used."""
        return max(0, (len(self) - 1) // length)

    def gather(self, numbers: npt.NDArray[np.int64], length: int) -> Sequences:
        """The sequences `numbers` [N].

        Raises:
            DamagedError: a shard is not what was written.
            ShardError: an id outside the vocabulary.
        """
        batch = np.empty((len(numbers), length + 1), np.int64)
        begins = np.zeros_like(batch)  # where the document of each token begins in the row
        for row, begun, number in zip(batch, begins, numbers.tolist(), strict=True):
            self._read(number * length, row, begun)
            if not 0 <= row.min() <= row.max() < self.vocab_size:
                raise ShardError(
                    f"sequence {number}: ids {row.min()} .. {row.max()}, vocabulary {self.vocab_size}",
                    "make the shards again",
                )
        positions = np.arange(length + 1) - np.maximum.accumulate(begins, axis=1)
        return Sequences(batch, positions[:, :-1])

    def _read(self, start: int, out: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]) -> None:
        """Fills `out`, and writes its own place where a document begins into `begins`: [length + 1] each."""
        done = 0
        while done < len(out):  # a sequence may run over into the next shards and sources
            number = int(np.searchsorted(self.ends, start + done, "right"))
            shards, stream = self.streams[number], self.streams[number].stream
            at = start + done - (int(self.ends[number]) - stream.tokens)
            number = int(stream.shards_at(np.array([at]))[0])
            shard = shards.open(number)
            at -= stream.start(number)
            piece = shard.read(at, min(at + len(out) - done, shard.info.tokens))
            out[done : done + len(piece)] = piece
            first, last = np.searchsorted(shard.side.starts, [at, at + len(piece)])
            places = shard.side.starts[first:last].astype(np.int64) - at + done
            begins[places] = places
            done += len(piece)
