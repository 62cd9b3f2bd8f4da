"""The order in which a run reads a stream's samples: a pure function of (dataset, stream, seed, position).

    position p -> epoch e = p // N, place = p % N
               -> super-block = permutation keyed by (root, stream, seed, e) of place // S
               -> sample = super-block * S + permutation keyed by (..., super-block) of place % S

A stream is cut into samples 0 .. N - 1, and a super-block is a range of S of them, about 32 shards: reading
stays within a few shards, which a node can hold, and the order still looks random. All super-blocks are of
one size but the last, which is read last, so there is no table and nothing is built, stored or shuffled: O(1)
memory, any position at once, and its inverse as well.

The permutation is an alternating Feistel network of six rounds (Luby and Rackoff, SIAM J. Comput. 17(2),
1988) over the smallest 2^bits >= length, with cycle walking for the rest (Black and Rogaway, CT-RSA 2002,
section 3). World size, workers and micro-batch only slice the positions. Frozen by
tests/shards/test_order.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

ROUNDS = 6
SHARDS_A_BLOCK = 32

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


def permute(index: Indices, length: int, key: bytes) -> Indices:
    """The images of `index` (each in [0, length)) under the permutation of [0, length) keyed by `key`.

    Args:
        index: positions, any shape.
        length: size of the domain, 1 .. 2^62.
        key: 48 bytes, eight a round.

    Raises:
        ValueError: an index outside the domain.
    """
    return _walk(index, length, key, inverse=False)


def unpermute(image: Indices, length: int, key: bytes) -> Indices:
    """What `permute` maps to `image`; arguments and errors are the same."""
    return _walk(image, length, key, inverse=True)


def _walk(index: Indices, length: int, key: bytes, inverse: bool) -> Indices:
    if not 0 < length <= 1 << 62:
        raise ValueError(f"length {length} is outside 1 .. 2^62")
    if index.size and not 0 <= index.min() <= index.max() < length:
        raise ValueError(f"index {index.min()} .. {index.max()} is outside [0, {length})")
    rounds = list(enumerate(np.frombuffer(key, "<u8", ROUNDS)))
    if inverse:
        rounds.reverse()
    bits = max(2, (length - 1).bit_length())
    value = index.astype(np.uint64).reshape(-1)
    pending = np.arange(value.size)
    while pending.size:  # cycle walking: an image beyond the domain is permuted again
        value[pending] = _feistel(value[pending], bits, rounds)
        pending = pending[value[pending] >= np.uint64(length)]
    return value.astype(np.int64).reshape(index.shape)


def _feistel(value: _Words, bits: int, rounds: list[tuple[int, np.uint64]]) -> _Words:
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = (np.uint64((1 << n) - 1) for n in (bits // 2, bits - bits // 2))
    high, low = value >> low_bits, value & low_mask
    for number, key in rounds:
        if number % 2:
            low = low ^ (mix(high ^ key) & low_mask)
        else:
            high = high ^ (mix(low ^ key) & high_mask)
    return (high << low_bits) | low


def mix(words: _Words) -> _Words:
    """A bijection of 64-bit integers that leaves no pattern: the finaliser of SplitMix64 (Steele, Lea, Flood,
    OOPSLA 2014), arithmetic modulo 2^64.
    """
    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def block_size(samples: int, shards: int) -> int:
    """Samples of a super-block: those of about 32 shards, at least one and at most all."""
    return max(1, min(samples, round(samples * SHARDS_A_BLOCK / max(shards, 1))))


@dataclass(frozen=True)
class Order:
    """The order of one stream."""

    root: str
    """Digest of the dataset's manifest."""
    stream: str
    seed: int
    length: int
    """Samples in an epoch."""
    block: int
    """Samples of a super-block."""

    def samples(self, positions: Indices) -> Indices:
        """The samples at `positions` (0, 1, ... over all epochs): [N] -> [N]."""
        found = np.empty(len(positions), np.int64)
        epochs, places = np.divmod(positions, self.length)
        for epoch, rows in groups(epochs):
            slots, offsets = np.divmod(places[rows], self.block)
            blocks = self._blocks(slots, epoch)
            for block, within in groups(blocks):
                size = self._size(block)
                inside = permute(offsets[within], size, self._key(epoch, block))
                found[rows[within]] = block * self.block + inside
        return found

    def positions(self, samples: Indices, epoch: int) -> Indices:
        """Where in `epoch` the samples stand, the inverse of `samples`: [N] -> [N]."""
        found = np.empty(len(samples), np.int64)
        blocks = samples // self.block
        for block, rows in groups(blocks):
            inside = samples[rows] % self.block
            slot = self._slots(np.array([block]), epoch)[0]
            found[rows] = slot * self.block + unpermute(inside, self._size(block), self._key(epoch, block))
        return found + epoch * self.length

    def block_at(self, position: int) -> tuple[int, int]:
        """First sample and number of samples of the super-block that `position` reads from."""
        epoch, place = divmod(position, self.length)
        block = int(self._blocks(np.array([place // self.block]), epoch)[0])
        return block * self.block, self._size(block)

    def _blocks(self, slots: Indices, epoch: int) -> Indices:
        full = self.length // self.block
        blocks = slots.copy()  # the short block, numbered `full`, stays where it is: last
        inner = slots < full
        blocks[inner] = permute(slots[inner], full, self._key(epoch)) if full else slots[inner]
        return blocks

    def _slots(self, blocks: Indices, epoch: int) -> Indices:
        full = self.length // self.block
        return blocks if blocks[0] >= full else unpermute(blocks, full, self._key(epoch))

    def _size(self, block: int) -> int:
        return min(self.block, self.length - block * self.block)

    def _key(self, epoch: int, block: int = -1) -> bytes:
        return _key(self.root, self.stream, self.seed, epoch, block)


@lru_cache(maxsize=4096)
def _key(root: str, stream: str, seed: int, epoch: int, block: int) -> bytes:
    """Key of a permutation: a hash, so that (seed 1, epoch 2) is not (seed 2, epoch 1)."""
    text = f"bloomery order 2\n{root}\n{stream}\n{seed}\n{epoch}\n{block}"
    return hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest()


def groups(values: Indices) -> list[tuple[int, Indices]]:
    """Each distinct value, ascending, with the rows where it stands."""
    if len(values) and values[0] == values[-1] and (values == values[0]).all():
        return [(int(values[0]), np.arange(len(values)))]
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    return [(int(values[rows[0]]), rows) for rows in np.split(order, cuts) if len(rows)]
