"""Repeated n-grams of texts' words, of all sizes in one pass, of many texts at once.

    size 2   hash of every 2-gram  --sort-->  places of those that stand in their text twice or more
    size 3   hashes there, rolled one word on  --sort-->  places ...
    size 10  few are left

An n-gram that repeats holds a shorter one that repeats at the same place, so each size looks only where the
size before has found something; most texts are done after a few. Up to 4 words n-grams are compared by
their words; from 5 on by their characters joined, as Gopher's peers do.

Texts stand one after the other with a mark between them that is like no other, and each text's own salt is in
its hashes: so no n-gram is found across two texts, or in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """N-grams of one size that stand in their text more than once, in the order of the texts."""

    places: Places
    """Number of each one's first word."""
    keys: Places
    """Equal for equal n-grams of a text; from 0 on."""


class Joined(NamedTuple):
    """Texts one after the other, with a mark of no length behind each."""

    words: Words
    first: Unsigned
    """Hashes of the words with their text's salt before them: an n-gram's begins with its first word's."""
    ends: Places
    """Characters before each word, and before the end."""
    starts: npt.NDArray[np.int64]
    """Each text's first word."""
    counts: npt.NDArray[np.int64]
    """Each text's words."""

    def texts_of(self, places: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Number of the text that each word belongs to."""
        return np.searchsorted(self.starts, places, side="right") - 1


def repeated_characters(texts: Sequence[Words]) -> list[Mapping[int, int]]:
    """Of each text {size: characters} of TOP, for the commonest n-gram, and of DUPLICATE, for duplicate ones.

    The commonest n-gram counts with the blanks between its words, times its count; of several the first. A
    duplicate one is an n-gram like which one began before; those that overlap it are passed over.
    """
    joined = _joined(texts)
    counted = {size: np.zeros(len(texts), np.int64) for size in (*TOP, *DUPLICATE)}
    words, ends = joined.words, joined.ends
    places, hashes = np.arange(len(words.lengths), dtype=np.int32), joined.first.copy()
    for size, found in counted.items():
        if len(places) and places[-1] + size == len(ends):  # the last one has no more words behind it
            places, hashes = places[:-1], hashes[:-1]
        if not len(places) and size in DUPLICATE:
            break
        if size == DUPLICATE[0]:
            hashes = joined.first[places]
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
        count(Repeats(places, keys), joined, size, found)
        del repeated, keys
    columns = (found.tolist() for found in counted.values())
    return [dict(zip(counted, row, strict=True)) for row in zip(*columns, strict=True)]


def _joined(texts: Sequence[Words]) -> Joined:
    """Texts one after the other; a single one stands as it is."""
    counts = np.fromiter((len(text.lengths) for text in texts), np.int64, len(texts))
    if len(texts) == 1:
        (words,), first, starts = texts, texts[0].hashes, np.zeros(1, np.int64)
    else:
        starts = np.cumsum(counts + 1) - counts - 1
        salts = np.repeat(_scattered(np.arange(1, len(texts) + 1, dtype=np.uint64)), counts + 1)
        lengths, hashes = np.zeros(len(salts), np.int32), salts.copy()
        for text, start, stop in zip(texts, starts.tolist(), (starts + counts).tolist(), strict=True):
            lengths[start:stop], hashes[start:stop] = text.lengths, text.hashes
        words = Words(lengths, np.zeros(0, np.uint16), hashes)
        first = hashes + power(lengths) * salts
    ends = np.zeros(len(words.lengths) + 1, np.int32)
    np.cumsum(words.lengths, out=ends[1:])
    return Joined(words, first, ends, starts, counts)


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
    for positions in _candidates(hashes):
        chosen = hashes[positions]
        order = chosen.argsort()
        chosen = chosen[order]
        begins = np.ones(len(chosen) + 1, bool)
        np.not_equal(chosen[1:], chosen[:-1], out=begins[1:-1])
        repeated = (~(begins[1:] & begins[:-1])).nonzero()[0]
        if not len(repeated):
            continue
        numbers = begins[repeated].cumsum(dtype=np.int32)
        keys[positions[order[repeated]]] = numbers + (first - 1)
        first += int(numbers[-1])
    found = keys >= 0
    return found, keys[found]


def _candidates(hashes: Unsigned) -> Iterator[npt.NDArray[np.int64]]:
    """Positions of hashes that may occur more than once, in groups of at most about MANY such that equal ones
    are in one group. Counting hashes by some of their bits spares sorting most that occur once."""
    groups = (len(hashes) // MANY).bit_length()
    leading = hashes.astype("<u8", copy=False).view("<u2")[3::4] >> (16 - groups)
    for group in range(1 << groups):
        positions = np.flatnonzero(leading == group) if groups else np.arange(len(hashes))
        bits = len(positions).bit_length() + 1
        buckets = hashes[positions] >> np.uint64(64 - groups - bits) & np.uint64((1 << bits) - 1)
        held = np.bincount(buckets.view(np.int64))
        yield positions[held[buckets] > 1]


def _top(repeats: Repeats, joined: Joined, size: int, found: npt.NDArray[np.int64]) -> None:
    counts, firsts = np.ones(len(found), np.int32), joined.starts.copy()
    of_key = np.zeros(int(repeats.keys.max(initial=-1)) + 1, np.int32)
    parts = list(_parts(repeats.places))
    for part in parts:
        of_key += np.bincount(repeats.keys[part], minlength=len(of_key)).astype(np.int32)
    for part in parts:
        begins = np.searchsorted(repeats.places[part], joined.starts)
        texts = np.flatnonzero(np.diff(begins, append=len(repeats.places[part])))
        commonest = np.maximum.reduceat(of_key[repeats.keys[part]], begins[texts])
        counts[texts] = np.maximum(counts[texts], commonest)
    for part in reversed(parts):
        texts = joined.texts_of(repeats.places[part])
        common = np.flatnonzero(of_key[repeats.keys[part]] == counts[texts])[::-1]
        firsts[texts[common]] = repeats.places[part][common]  # of several, the last one written is the first
    whole = np.flatnonzero(firsts + size <= joined.starts + joined.counts)
    firsts = firsts[whole]
    found[whole] = counts[whole] * (joined.ends[firsts + size] - joined.ends[firsts] + size - 1)


def _duplicates(repeats: Repeats, joined: Joined, size: int, found: npt.NDArray[np.int64]) -> None:
    seen = bytearray(int(repeats.keys.max(initial=-1)) + 1)
    free = 0
    for part in _parts(repeats.places):
        counted = []
        for place, key in zip(repeats.places[part].tolist(), repeats.keys[part].tolist(), strict=True):
            if place < free:
                continue
            if seen[key]:
                counted.append(place)
                free = place + size
            else:
                seen[key] = 1
        places = np.array(counted, np.int64)
        np.add.at(found, joined.texts_of(places), joined.ends[places + size] - joined.ends[places])


def _scattered(numbers: Unsigned) -> Unsigned:
    """Another 64 bits for each number, without two alike (the finalizer of MurmurHash3)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(33))
