"""MinHash for near-duplicate detection (Broder 1997), banded for LSH: a numpy kernel, the same on every
machine.

    text -> words -> shingles (64-bit hashes of n words in a row, a set) -> signature [bands * rows] -> one
    key a band

Two texts with Jaccard s of their shingle sets share a band's key with probability s^rows, so one of them with
1 - (1 - s^rows)^bands. That only proposes pairs; `jaccard` decides.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

WORD = re.compile(r"\w+")
BLOCK = 1 << 16
"""Characters hashed at once: a long text needs no more memory than a short one, but for its hashes."""
CHUNK = 1024
"""Shingles hashed at once: with 112 hash functions 0.5 MB, which stay in the cache."""
BASE = 0x9E3779B97F4A7C15


def content_of(text: str) -> str:
    """Hash of the normalised text, 32 hex digits: the same for exact duplicates."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()[:32]


def normalised(text: str) -> str:
    """The text by which exact duplicates are told: lower case, each white space one blank."""
    return " ".join(text.lower().split())


def mix(values: Hashes) -> Hashes:
    """A bijection of 64-bit integers that leaves no pattern: SplitMix64's finaliser (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def shingles(text: str, ngram: int) -> Hashes:
    """Distinct hashes of each `ngram` words in a row; of all words where there are fewer: [shingles >= 1]."""
    return np.unique(word_ngrams(text, ngram))


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
    """Hash of each `width` words in a row, in order: [words - width + 1], none where there are fewer
    words."""
    count = max(0, len(hashes) - width + 1)
    joined = hashes[:count]
    for position in range(1, width):
        joined = mix(joined * np.uint64(0x9E3779B97F4A7C15) ^ hashes[position : position + count])
    return mix(joined)


class MinHash(NamedTuple):
    """`bands` x `rows` hash functions h(x) = a x + b mod 2^32 of a shingle's leading half, drawn from a seed.

    Shingles are mixed already, so affine functions serve; 32 bits take four times less time than 64.
    """

    bands: int
    rows: int
    a: npt.NDArray[np.uint32]
    b: npt.NDArray[np.uint32]

    @classmethod
    def drawn(cls, bands: int, rows: int, seed: int) -> MinHash:
        """The functions of a seed; the same with every version of numpy."""
        count = bands * rows
        start = np.uint64(seed * 0xD1B54A32D192ED03 % (1 << 64))
        draws = _leading_half(mix(mix(np.arange(2 * count, dtype=np.uint64)) + start))
        return cls(bands, rows, draws[:count] | np.uint32(1), draws[count:])

    def band_keys(self, found: Hashes) -> npt.NDArray[np.int64]:
        """Keys of a shingle set (or list: what is in it twice counts once), one a band, no two alike:
        [bands]."""
        halves = _leading_half(found)
        least = np.full(self.bands * self.rows, np.iinfo(np.uint32).max, np.uint32)
        room = np.empty((len(least), min(CHUNK, len(found))), np.uint32)
        for start in range(0, len(found), CHUNK):
            part = halves[start : start + CHUNK]
            hashed = np.multiply(self.a[:, None], part, out=room[:, : len(part)])  # [functions, chunk]
            hashed += self.b[:, None]
            np.minimum(least, hashed.min(axis=1), out=least)
        signature = least.astype(np.uint64).reshape(self.bands, self.rows)
        keys = mix(np.arange(self.bands, dtype=np.uint64))
        for row in range(self.rows):
            keys = mix(keys ^ signature[:, row])
        return keys.view(np.int64)


def _leading_half(values: Hashes) -> npt.NDArray[np.uint32]:
    return (values >> np.uint64(32)).astype(np.uint32)


def jaccard(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    """Jaccard index of two sets given as arrays of distinct elements."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)
