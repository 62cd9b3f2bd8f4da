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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

WORD = re.compile(r"\w+")
CHUNK = 2048
"""Shingles hashed at once: with 112 hash functions, 1.8 MB."""
MEMO = 1 << 20
"""Distinct words whose hashes are remembered by a process."""


class _WordHashes(dict[str, int]):
    """64-bit hash of a word, remembered."""

    def __missing__(self, word: str) -> int:
        if len(self) > MEMO:
            self.clear()
        value = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        self[word] = value
        return value


_WORDS = _WordHashes()


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
    hashes = word_hashes(words_of(text) or [text])
    return np.unique(ngrams(hashes, min(ngram, len(hashes))))


def words_of(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())


def word_hashes(words: Sequence[str]) -> Hashes:
    """64-bit hash of each word: [words]."""
    return np.fromiter((_WORDS[word] for word in words), np.uint64, len(words))


def ngrams(hashes: Hashes, width: int) -> Hashes:
    """Hash of each `width` words in a row, in order: [words - width + 1], none where there are fewer
    words."""
    count = max(0, len(hashes) - width + 1)
    joined = hashes[:count]
    for position in range(1, width):
        joined = mix(joined * np.uint64(0x9E3779B97F4A7C15) ^ hashes[position : position + count])
    return mix(joined)


class MinHash(NamedTuple):
    """`bands` x `rows` hash functions h(x) = (a x + b mod 2^64) >> 32, drawn from a seed."""

    bands: int
    rows: int
    a: Hashes
    b: Hashes

    @classmethod
    def drawn(cls, bands: int, rows: int, seed: int) -> MinHash:
        """The functions of a seed; the same with every version of numpy."""
        count = bands * rows
        start = np.uint64(seed * 0xD1B54A32D192ED03 % (1 << 64))
        draws = mix(mix(np.arange(2 * count, dtype=np.uint64)) + start)
        return cls(bands, rows, draws[:count] | np.uint64(1), draws[count:])

    def band_keys(self, found: Hashes) -> npt.NDArray[np.int64]:
        """Keys of a shingle set, one a band and no two bands alike: [bands]."""
        least = np.full(self.bands * self.rows, np.iinfo(np.uint64).max, np.uint64)
        for start in range(0, len(found), CHUNK):
            hashed = (found[start : start + CHUNK, None] * self.a + self.b) >> np.uint64(
                32
            )  # [chunk, functions]
            least = np.minimum(least, hashed.min(axis=0))
        signature = least.reshape(self.bands, self.rows)
        keys = mix(np.arange(self.bands, dtype=np.uint64))
        for row in range(self.rows):
            keys = mix(keys ^ signature[:, row])
        return keys.view(np.int64)


def jaccard(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    """Jaccard index of two sets given as arrays of distinct elements."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)
