"""Which keys a shard holds: ranges of the key, each with its tokens, cut into shards as equal as can be.

    keys of a stream   |....|..|......|.|...| ...   2^20 ranges, each with its tokens and longest document
    too coarse?                |.|..|.|             counted finer, until no range but a single key's is
    cut                ^---------^--------^         no two shards differ by more than the largest range

A pure function of the stream's keys and lengths: a cluster, which counts by Spark, and one process cut alike.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bloomery.shards.keys import Keys

BUCKET_BITS = 20
"""Leading bits of the key that the histogram of tokens counts by."""
FINER = 4
"""Bits by which ranges that are too coarse are split in a round."""
TOLERANCE = 0.02
"""By how much of its size a shard may differ from another, if the longest document is smaller than that."""

Counts = npt.NDArray[np.int64]


class Ranges(NamedTuple):
    """Ranges of the key in order, each with what a stream holds of it; each column is [ranges]."""

    first: Keys
    """Least key of the range."""
    tokens: Counts
    documents: Counts
    longest: Counts
    """Tokens of the longest document."""

    @classmethod
    def of(cls, keys: Keys, tokens: Counts, shift: int) -> Self:
        """Counts documents, given in the order of their keys, by all but the last `shift` bits of the key.

        Args:
            keys: ascending: [documents].
            tokens: of each document: [documents].
            shift: bits of the key that a range leaves open.
        """
        first, starts, documents = np.unique(least(keys, shift), return_index=True, return_counts=True)
        if not len(starts):
            return cls(first, *(np.zeros(0, np.int64),) * 3)
        return cls(first, np.add.reduceat(tokens, starts), documents, np.maximum.reduceat(tokens, starts))

    def coarse(self, shards: int) -> npt.NDArray[np.bool_]:
        """Which hold so much that a cut beside them could make `shards` shards uneven: [ranges]."""
        most = max(int(self.longest.max()), TOLERANCE * int(self.tokens.sum()) / shards)
        return (self.tokens > most) & (self.documents > 1) & (shards > 1)

    def refined(self, coarse: npt.NDArray[np.bool_], finer: Ranges) -> Ranges:
        """These ranges with the finer ones in place of those that are coarse."""
        columns = [np.concatenate([column[~coarse], new]) for column, new in zip(self, finer, strict=True)]
        order = np.argsort(columns[0])
        return Ranges(*(column[order] for column in columns))

    def cut(self, shards: int) -> Keys:
        """Least key of each shard: [shards]."""
        return self.first[spread(self.tokens, shards)]


def least(keys: Keys, shift: int) -> Keys:
    """The least keys that share all but their last `shift` bits with `keys`."""
    return keys >> np.uint64(shift) << np.uint64(shift)


def cut(keys: Keys, tokens: Counts, shards: int) -> Keys:
    """Least key of each of at most `shards` shards: [shards].

    Args:
        keys: of the stream's documents, ascending: [documents].
        tokens: of each document: [documents].
        shards: how many are wanted.
    """
    shift = 64 - BUCKET_BITS
    found = Ranges.of(keys, tokens, shift)
    while shift and (coarse := found.coarse(shards)).any():
        within = np.isin(least(keys, shift), found.first[coarse])
        shift -= FINER
        found = found.refined(coarse, Ranges.of(keys[within], tokens[within], shift))
    return found.cut(shards)


def spread(sizes: Counts, shards: int) -> Counts:
    """First item of each of at most `shards` shards, of which no two differ by more than the largest item:
    [shards].

    Bárány and Grinberg, "Block partitions of sequences", Israel J. Math. 206 (2015), Theorem 1, show that
    such a cut exists. It is found so: let `least` be the greatest size such that `shards` blocks of at least
    `least` fit into the sequence; then as many blocks of at most `least + largest` cover it, for else those
    cut as soon as they reach `least + 1` would have fitted. Where n blocks between the two can end is a range
    of positions, from where n shortest blocks end to where n longest do. Walking back from the end, each cut
    is the one within reach that is nearest to its place in an equal division.

    Args:
        sizes: tokens of each item in order, positive: [items].
        shards: how many are wanted, 1 or more; fewer come out where an item is larger than a shard.
    """
    if not len(sizes):
        return np.zeros(0, np.int64)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    total, largest = int(ends[-1]), int(sizes.max())
    low, high = max(0, total // shards - largest), total // shards
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _shortest(ends, shards, middle) is not None else (low, middle - 1)
    earliest, latest = _shortest(ends, shards, low), _longest(ends, shards, low + largest)
    assert earliest is not None and latest[-1] == len(sizes)
    cut, cuts = len(sizes), []
    for number in range(shards - 1, -1, -1):
        first = max(earliest[number], _at_least(ends, int(ends[cut]) - low - largest))
        last = min(latest[number], _at_most(ends, int(ends[cut]) - low))
        wanted = _at_least(ends, round(number * total / shards))
        if wanted and number * total / shards - ends[wanted - 1] < ends[wanted] - number * total / shards:
            wanted -= 1
        cut = min(max(wanted, first), last)
        cuts.append(cut)
    found = np.unique(np.array(cuts, np.int64))
    return found[found < len(sizes)]


def _shortest(ends: Counts, shards: int, least: int) -> list[int] | None:
    """Where blocks end that stop as soon as they hold `least`: [shards + 1]; None if too few fit."""
    reached = [0]
    for _ in range(shards):
        position = _at_least(ends, int(ends[reached[-1]]) + least)
        if position == len(ends):
            return None
        reached.append(position)
    return reached


def _longest(ends: Counts, shards: int, most: int) -> list[int]:
    """Where blocks end that take all they can of at most `most`: [shards + 1]."""
    reached = [0]
    for _ in range(shards):
        reached.append(_at_most(ends, int(ends[reached[-1]]) + most))
    return reached


def _at_least(ends: Counts, value: int) -> int:
    return int(np.searchsorted(ends, value, "left"))


def _at_most(ends: Counts, value: int) -> int:
    return int(np.searchsorted(ends, value, "right")) - 1
