"""Repeated n-grams of a text's words, of all sizes in one pass.

    size 2   hash of every 2-gram  --sort-->  places of those that stand in the text twice or more
    size 3   hashes there, rolled one word on  --sort-->  places ...
    size 10  few are left

An n-gram that repeats holds a shorter one that repeats at the same place, so each size looks only where the
size before has found something; most texts are done after a few. Up to 4 words n-grams are compared by
their words; from 5 on by their characters joined, as Gopher's peers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from spark_jobs.cleaning.words import Unsigned, Words, power

TOP = (2, 3, 4)
DUPLICATE = (5, 6, 7, 8, 9, 10)
WORD_BASE = np.uint64(0xD6E8FEB86659FD93)
"""Odd multiplier between words, another than the one between their characters."""

MANY = 1 << 18
"""Hashes that are sorted at a time; of more, those with equal leading bits go together."""

Places = npt.NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)


class Repeats(NamedTuple):
    """N-grams of one size that stand in the text more than once, in the order of the text."""

    places: Places
    """Number of each one's first word."""
    keys: Places
    """Equal for equal n-grams; from 0 on."""


def repeated_characters(words: Words) -> Mapping[int, int]:
    """{size: characters} of TOP, for the commonest n-gram, and of DUPLICATE, for duplicate ones.

    The commonest n-gram counts with the blanks between its words, times its count; of several the first. A
    duplicate one is an n-gram like which one began before; those that overlap it are passed over.
    """
    ends = np.zeros(len(words.lengths) + 1, np.int32)
    np.cumsum(words.lengths, out=ends[1:])
    counted = dict.fromkeys((*TOP, *DUPLICATE), 0)
    places, hashes = np.arange(len(words.lengths), dtype=np.int32), words.hashes.copy()
    for size in counted:
        if len(places) and places[-1] + size == len(ends):  # the last one has no more words behind it
            places, hashes = places[:-1], hashes[:-1]
        if not len(places) and size in DUPLICATE:
            break
        if size == DUPLICATE[0]:
            hashes = words.hashes[places]
            for number in range(1, size - 1):
                _join(hashes, words, places, number)
        if size in TOP:
            hashes *= WORD_BASE
            for part in _parts(places):
                hashes[part] += words.hashes[places[part] + (size - 1)]
        else:
            _join(hashes, words, places, size - 1)
        repeated, keys = _repeats(hashes)
        places, hashes = _keep(places, repeated), _keep(hashes, repeated)
        count = _top if size in TOP else _duplicates
        counted[size] = count(Repeats(places, keys), ends, size)
        del repeated, keys
    return counted


def _join(hashes: Unsigned, words: Words, places: Places, number: int) -> None:
    """Hashes of the first `number` words of each n-gram, and of one more, by their characters; in place."""
    for part in _parts(places):
        following = places[part] + number
        hashes[part] *= power(words.lengths[following])
        hashes[part] += words.hashes[following]


def _keep(column: npt.NDArray[Scalar], chosen: npt.NDArray[np.bool_]) -> npt.NDArray[Scalar]:
    """The chosen entries, moved to the front of the column: a copy would double it."""
    held = 0
    for part in _parts(chosen):
        kept = column[part][chosen[part]]
        column[held : held + len(kept)] = kept
        held += len(kept)
    return column[:held]


def _parts(column: npt.NDArray[Any]) -> Iterator[slice]:
    return (slice(start, start + MANY) for start in range(0, len(column), MANY))


def _repeats(hashes: Unsigned) -> tuple[npt.NDArray[np.bool_], Places]:
    """Which values occur more than once, and a number for each such value, in their order."""
    keys = np.full(len(hashes), -1, np.int32)
    first = 0
    for positions in _classes(hashes):
        chosen = hashes[positions]
        order = chosen.argsort()
        chosen = chosen[order]
        begins = np.ones(len(chosen) + 1, bool)
        np.not_equal(chosen[1:], chosen[:-1], out=begins[1:-1])
        repeated = (~(begins[1:] & begins[:-1])).nonzero()[0]
        if not len(repeated):
            continue
        numbers = begins[repeated].cumsum(dtype=np.int32)
        keys[order[repeated] if isinstance(positions, slice) else positions[order[repeated]]] = numbers + (
            first - 1
        )
        first += int(numbers[-1])
    found = keys >= 0
    return found, keys[found]


def _classes(hashes: Unsigned) -> Iterator[slice | npt.NDArray[np.int64]]:
    """Positions of hashes, in groups of about MANY such that equal ones are in one group."""
    bits = (len(hashes) // MANY).bit_length()
    if not bits:
        yield slice(None)
        return
    leading = hashes.astype("<u8", copy=False).view("<u2")[3::4] >> (16 - bits)
    for group in range(1 << bits):
        yield np.flatnonzero(leading == group)


def _top(repeats: Repeats, ends: Places, size: int) -> int:
    count, first = 1, 0
    if len(repeats.places):
        counts = np.zeros(int(repeats.keys.max()) + 1, np.int32)
        for part in _parts(repeats.keys):
            counts += np.bincount(repeats.keys[part], minlength=len(counts)).astype(np.int32)
        count = int(counts.max())
        first = int(repeats.places[(counts == count)[repeats.keys].argmax()])
    if first + size >= len(ends):
        return 0
    return count * (int(ends[first + size] - ends[first]) + size - 1)


def _duplicates(repeats: Repeats, ends: Places, size: int) -> int:
    seen = bytearray(int(repeats.keys.max(initial=-1)) + 1)
    counted = free = 0
    for part in _parts(repeats.places):
        places, keys = repeats.places[part], repeats.keys[part]
        lengths = ends[places + size] - ends[places]
        for place, key, length in zip(places.tolist(), keys.tolist(), lengths.tolist(), strict=True):
            if place < free:
                continue
            if seen[key]:
                counted += length
                free = place + size
            else:
                seen[key] = 1
    return counted
