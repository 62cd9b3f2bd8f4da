"""A split of the shards as one stream of tokens, cut into sequences: concat-and-chunk packing.

    shard 0 | shard 1 | ...  ->  t0 t1 t2 ...  ->  sequence i = tokens [i*L, i*L + L], L + 1 of them

Neighbours share one token, so each token but the first is a target exactly once. Shards are memory-mapped
and never merged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.artifacts.digests import file_digest
from bloomery.shards.format import Shard, ShardError, open_shard

Sequences = npt.NDArray[np.int64]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest.json of a folder of shards.

    Raises:
        ShardError: it is absent or broken.
    """
    path = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ShardError(f"{path}: {error}", "run the stage shard again") from error
    return manifest


def check_shards(folder: Path) -> None:
    """Hashes every shard's files again.

    Raises:
        ShardError: names the first file whose bytes are not those that the manifest names.
    """
    for split, found in read_manifest(folder)["splits"].items():
        for shard in found["shards"]:
            for kind in ("bin", "idx"):
                path, expected = folder / split / f"{shard['name']}.{kind}", shard[f"{kind}_sha256"]
                if not path.is_file() or file_digest(path) != expected:
                    raise ShardError(
                        f"{path} is absent or damaged", "invalidate the stage shard, run it again"
                    )


@dataclass(frozen=True)
class TokenStream:
    """All tokens of one split, in the order of its manifest."""

    shards: tuple[Shard, ...]
    ends: npt.NDArray[np.int64]
    """Position in the stream where each shard ends: [shards]."""
    vocab_size: int

    @classmethod
    def open(cls, folder: Path, split: str) -> TokenStream:
        """Opens the shards of `split` below `folder`.

        Raises:
            ShardError: a file is absent or does not hold what the manifest says.
        """
        manifest = read_manifest(folder)
        listed = manifest["splits"][split]["shards"]
        shards = tuple(open_shard(folder / split, entry["name"]) for entry in listed)
        for shard, entry in zip(shards, listed, strict=True):
            if len(shard.tokens) != entry["tokens"]:
                raise ShardError(
                    f"{folder / split / shard.name}.bin: {len(shard.tokens)} tokens, "
                    f"the manifest says {entry['tokens']}",
                    "run the stage shard again",
                )
        ends = np.cumsum([len(shard.tokens) for shard in shards], dtype=np.int64)
        return cls(shards, ends, manifest["vocab_size"])

    def __len__(self) -> int:
        """Tokens of the split."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def sequences(self, length: int) -> int:
        """Sequences of `length` tokens and their targets in the stream; a shorter tail is not used."""
        return max(0, (len(self) - 1) // length)

    def gather(self, numbers: npt.NDArray[np.int64], length: int) -> Sequences:
        """Tokens of the sequences `numbers` [N], each with the token after it: [N, length + 1].

        Raises:
            ShardError: an id outside the vocabulary.
        """
        batch = np.empty((len(numbers), length + 1), np.int64)
        for row, number in zip(batch, numbers, strict=True):
            self._read(int(number) * length, row)
            if not 0 <= row.min() <= row.max() < self.vocab_size:
                raise ShardError(
                    f"sequence {number}: ids {row.min()} .. {row.max()}, vocabulary {self.vocab_size}",
                    "run the stage shard again",
                )
        return batch

    def _read(self, start: int, out: npt.NDArray[np.int64]) -> None:
        done, at = 0, int(np.searchsorted(self.ends, start, side="right"))
        while done < len(out):  # a sequence may run over into the next shards
            shard = self.shards[at].tokens
            offset = start + done - (int(self.ends[at]) - len(shard))
            piece = shard[offset : offset + len(out) - done]
            out[done : done + len(piece)] = piece
            done, at = done + len(piece), at + 1
