"""MinHash for near-duplicate detection (Broder 1997), banded for LSH: a numpy kernel, the same on every
machine.

    text -> words -> n-grams (64-bit hashes of n words in a row) -> sketch [bands * rows] -> a key a band

Two texts with Jaccard s of their shingle sets share a band's key with probability s^rows, so one of them with
1 - (1 - s^rows)^bands; bands that overlap by half propose some more. That only proposes pairs; `jaccard`
decides.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.config.corpus import MinHashConfig
from bloomery.shards.order import mix

Hashes = npt.NDArray[np.uint64]
Shingles = npt.NDArray[np.uint32]

WORD = re.compile(r"\w+")
BLOCK = 1 << 16
"""Characters hashed at once: a long text needs no more memory than a short one, but for its hashes."""
DRAWS = 1024
"""Hashes drawn at once for a short text: as a rule they fill each of 112 bins (112 ln 112 = 528)."""
BASE = 0x9E3779B97F4A7C15


def content_of(text: str) -> str:
    """Hash of the normalised text, 32 hex digits: the same for exact duplicates."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()[:32]


def normalised(text: str) -> str:
    """The text by which exact duplicates are told: lower case, each white space one blank."""
    return " ".join(text.lower().split())


def shingles(text: str, ngram: int) -> Shingles:
    """Distinct hashes of each `ngram` words in a row; of all words where there are fewer: [shingles >= 1].

    Of 32 bits, which take half the room: of n shingles n^2 / 2^33 meet another by chance, so that a Jaccard
    index is right to 1e-4 even in a text of a million words.
    """
    found = (word_ngrams(text, ngram) >> _HALF).astype(np.uint32)
    found.sort()  # not np.unique, which has a table of hashes made: 6 times the time
    return found[np.append(True, found[1:] != found[:-1])]


def word_ngrams(text: str, ngram: int) -> Hashes:
    """Hashes of each `ngram` words in a row, in order; of all words where there are fewer: [n-grams >= 1]."""
    hashes = word_hashes(text)
    if not len(hashes):  # no word: the text stands for itself
        hashes = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), "<u8")
    return ngrams(hashes, min(ngram, len(hashes)))


def words_of(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())


def same_length_lower(text: str) -> str:
    """Lower case, character by character: a few have a lower case of two, which would move all that
    follows."""
    lower = text.lower()
    return (
        lower if len(lower) == len(text) else "".join(low if len(low := c.lower()) == 1 else c for c in text)
    )


def word_hashes(text: str) -> Hashes:
    """64-bit hash of each of `words_of(text)`, in order: [words].

    That of a word is the sum of value(character i) * BASE^i mod 2^64, mixed; taken as differences of running
    sums over a block, so nothing is done word by word.
    """
    lower, found = text.lower(), []
    begun, held = 0, 0  # characters and hash of a word that the block before has begun
    for start in range(0, len(lower), BLOCK):
        values = _values(lower[start : start + BLOCK])
        size = len(values)
        wordlike = np.zeros(size + 2, np.bool_)  # as if nothing stood on either side
        np.bitwise_and(values, np.uint64(1), out=wordlike[1:-1], casting="unsafe")
        edges = np.flatnonzero(wordlike[1:] != wordlike[:-1])
        firsts, ends = edges[::2], edges[1::2]
        values *= _powers(BASE)[:size]
        sums = np.zeros(size + 1, np.uint64)
        np.cumsum(values, out=sums[1:])
        hashes = (sums[ends] - sums[firsts]) * _powers(pow(BASE, -1, 1 << 64))[firsts]
        if begun and wordlike[1]:
            whole = int(hashes[0]) * pow(BASE, begun, 1 << 64) + held
            hashes[0], begun = whole & _ALL, begun + int(ends[0])
        elif begun:
            found.append(np.array([held], np.uint64))
            begun = 0
        if wordlike[-2]:
            begun = begun if len(ends) == 1 and begun else int(ends[-1] - firsts[-1])
            held, hashes = int(hashes[-1]), hashes[:-1]
        else:
            begun = 0
        found.append(hashes)
    if begun:
        found.append(np.array([held], np.uint64))
    return mix(np.concatenate(found)) if found else np.zeros(0, np.uint64)


_ALL = (1 << 64) - 1
_LOW = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)


def _values(text: str) -> Hashes:
    """A 64-bit value of each character, odd where words are made of it: [characters]."""
    if text.isascii():
        return _code_points().take(np.frombuffer(text.encode("ascii"), np.uint8))
    return _code_points().take(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"))


@cache
def _code_points() -> Hashes:
    """The value of each code point; odd for what `\\w` matches: [0x110000]."""
    every = np.arange(0x110000, dtype="<u4")
    text = every.tobytes().decode("utf-32-le", "surrogatepass")
    wordlike = np.fromiter((c.isalnum() or c == "_" for c in text), np.uint64, len(every))
    return mix(every.astype(np.uint64)) & ~np.uint64(1) | wordlike


@cache
def _powers(base: int) -> Hashes:
    """base^0, base^1, ... mod 2^64: [BLOCK + 1]."""
    powers = np.full(BLOCK + 1, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def ngrams(hashes: Hashes, width: int) -> Hashes:
    """Hash of each `width` words in a row, in order: [words - width + 1], none where there are fewer.

    That of words h is sum(h[i] * BASE^(width - 1 - i)) mod 2^64, mixed.
    """
    count = max(0, len(hashes) - width + 1)
    joined = hashes[:count].copy()
    for position in range(1, width):
        joined *= np.uint64(BASE)
        joined += hashes[position : position + count]
    return mix(joined)


class MinHash(NamedTuple):
    """A sketch of `bands` x `rows` bins, and the keys of its bands.

    Fast similarity sketching (Dahlgaard, Knudsen, Thorup, FOCS 2017, section 2): in round i < K each shingle
    is thrown into one of K bins with the value (i, hash), in round K + j into bin j; a bin keeps the least
    value. One round serves a long text, where MinHash hashes each shingle K times. Two sketches agree in a
    bin with probability J, and their estimate of J varies less than MinHash's.
    """

    bands: int
    rows: int
    overlap: bool
    starts: Hashes
    """What sets each round's hash function apart: [2 K]."""

    @classmethod
    def drawn(cls, config: MinHashConfig) -> MinHash:
        """The sketch of a config's seed; the same with every version of numpy."""
        count, start = 2 * config.bands * config.rows, np.uint64(config.seed * 0xD1B54A32D192ED03 & _ALL)
        starts = mix(mix(np.arange(count, dtype=np.uint64)) + start)
        return cls(config.bands, config.rows, config.overlap and config.rows > 1, starts)

    def sketch(self, found: Hashes) -> Hashes:
        """The least value in each bin of a shingle set (or list: what is in it twice counts once): [K]."""
        bins = self.bands * self.rows
        least = np.full(bins, _ALL, np.uint64)
        rounds = max(1, DRAWS // len(found))
        for first in range(0, bins, rounds):
            last = min(first + rounds, bins)
            for start in range(0, len(found), BLOCK):
                draws = mix(
                    found[start : start + BLOCK] + self.starts[first:last, None]
                )  # [rounds, shingles]
                into = (draws >> _HALF) * np.uint64(bins) >> _HALF
                values = np.arange(first, last, dtype=np.uint64)[:, None] << _HALF | draws & _LOW
                np.minimum.at(least, into.ravel().view(np.int64), values.ravel())
            if least.max() != _ALL:
                return least
        empty = np.flatnonzero(least == np.uint64(_ALL))
        draws = mix(found + self.starts[bins + empty, None]).min(axis=1)  # [empty]
        least[empty] = (bins + empty.astype(np.uint64)) << _HALF | draws >> _HALF
        return least

    def band_keys(self, sketches: Hashes) -> npt.NDArray[np.int64]:
        """Keys of sketches [texts, K], no two of a text alike: of each band; with `overlap` also of those
        that begin half a band later, the last of them joined to the beginning: [texts, bands or 2 * bands].
        """
        shifts = (0, self.rows // 2) if self.overlap else (0,)
        rolled = np.stack([np.roll(sketches, -shift, axis=1) for shift in shifts], axis=1)
        banded = rolled.reshape(len(sketches), len(shifts) * self.bands, self.rows)
        keys = np.broadcast_to(mix(np.arange(banded.shape[1], dtype=np.uint64)), banded.shape[:2])
        for row in range(self.rows):
            keys = mix(keys ^ banded[:, :, row])
        return keys.view(np.int64)


def jaccard(one: Shingles, other: Shingles) -> float:
    """Jaccard index of two sets given as arrays of distinct elements."""
    found = np.concatenate([one, other])
    found.sort()
    both = int(np.count_nonzero(found[1:] == found[:-1]))
    return both / (len(one) + len(other) - both)
