"""Where one shard ends and the next begins.

A stream is a sequence of items (key buckets, each with its tokens), cut into blocks as equal as can be.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


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
