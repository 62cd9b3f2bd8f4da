"""Repeated n-grams of a text's words, of all sizes in one pass.

    size 2   hash of every 2-gram  --sort-->  places of those that stand in the text twice or more
    size 3   hashes there, rolled one word on  --sort-->  places ...
    size 10  few are left

An n-gram that repeats holds a shorter one that repeats at the same place, so each size looks only where the
size before has found something; most texts are done after a few. Up to 4 words n-grams are compared by
their words; from 5 on by their characters joined, as Gopher's peers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_jobs.cleaning.words import Unsigned, Words

TOP = (2, 3, 4)
DUPLICATE = (5, 6, 7, 8, 9, 10)
WORD_BASE = np.uint64(0xD6E8FEB86659FD93)
"""Odd multiplier between words, another than the one between their characters."""

Places = npt.NDArray[np.int64]


class Repeats(NamedTuple):
    """N-grams of one size that stand in the text more than once, in the order of the text."""

    places: Places
    """Number of each one's first word."""
    keys: Places
    """Equal for equal n-grams."""


def repeated_characters(words: Words) -> Mapping[int, int]:
    """{size: characters} of TOP, for the commonest n-gram, and of DUPLICATE, for duplicate ones.

    The commonest n-gram counts with the blanks between its words, times its count; of several the first. A
    duplicate one is an n-gram like which one began before; those that overlap it are passed over.
    """
    ends = np.concatenate(([0], np.cumsum(words.lengths, dtype=np.int64)))
    counted: dict[int, int] = {}
    places = np.arange(len(words.lengths))
    by_words = by_characters = words.hashes
    for size in range(2, DUPLICATE[-1] + 1):
        inside = places <= len(words.lengths) - size
        places, by_words, by_characters = places[inside], by_words[inside], by_characters[inside]
        last = places + (size - 1)
        by_words = by_words * WORD_BASE + words.hashes[last]
        by_characters = by_characters * words.powers[last] + words.hashes[last]
        chosen, keys = _repeats(by_words if size in TOP else by_characters)
        places, by_words, by_characters = places[chosen], by_words[chosen], by_characters[chosen]
        repeats = Repeats(places, keys)
        counted[size] = (_top if size in TOP else _duplicates)(repeats, ends, size)
    return counted


def _repeats(hashes: Unsigned) -> tuple[Places, Places]:
    """Positions in `hashes` of values that occur more than once, in order, and a number for each value."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    equal = ordered[1:] == ordered[:-1]
    if not equal.any():
        return order[:0], order[:0]
    repeated = np.concatenate((equal, [False])) | np.concatenate(([False], equal))
    positions = order[repeated]
    keys = np.cumsum(np.concatenate(([True], ~equal)))[repeated]
    back = np.argsort(positions)
    return positions[back], keys[back]


def _top(repeats: Repeats, ends: Places, size: int) -> int:
    count, first = 1, 0
    if len(repeats.places):
        counts = np.bincount(repeats.keys)
        count = int(counts.max())
        first = int(repeats.places[counts[repeats.keys].argmax()])
    if first + size >= len(ends):
        return 0
    return count * (int(ends[first + size] - ends[first]) + size - 1)


def _duplicates(repeats: Repeats, ends: Places, size: int) -> int:
    lengths = ends[repeats.places + size] - ends[repeats.places]
    seen: set[int] = set()
    counted = free = 0
    for place, key, length in zip(
        repeats.places.tolist(), repeats.keys.tolist(), lengths.tolist(), strict=True
    ):
        if place < free:
            continue
        if key in seen:
            counted += length
            free = place + size
        else:
            seen.add(key)
    return counted
