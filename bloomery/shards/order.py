"""The order of training samples: a pure function of (dataset, seed, global sample index).

    global index g -> epoch = g // length, position = g % length
                   -> sequence = permutation keyed by (dataset, seed, epoch) of position

The permutation is an alternating Feistel network of six rounds (Luby and Rackoff, SIAM J. Comput. 17(2),
1988) over the smallest 2^bits >= length, with cycle walking for the rest (Black and Rogaway, CT-RSA 2002,
section 3): O(1) memory, any index at once, nothing built, stored or shuffled. World size, workers and
micro-batch only slice the indices; a loader's state is one integer. Frozen by tests/shards/test_order.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDS = 6

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
    if not 0 < length <= 1 << 62:
        raise ValueError(f"length {length} is outside 1 .. 2^62")
    if index.size and not 0 <= index.min() <= index.max() < length:
        raise ValueError(f"index {index.min()} .. {index.max()} is outside [0, {length})")
    rounds = np.frombuffer(key, "<u8", ROUNDS)
    bits = max(2, (length - 1).bit_length())
    value = index.astype(np.uint64).reshape(-1)
    pending = np.arange(value.size)
    while pending.size:  # cycle walking: an image beyond the domain is permuted again
        value[pending] = _feistel(value[pending], bits, rounds)
        pending = pending[value[pending] >= np.uint64(length)]
    return value.astype(np.int64).reshape(index.shape)


def _feistel(value: _Words, bits: int, rounds: _Words) -> _Words:
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = (np.uint64((1 << n) - 1) for n in (bits // 2, bits - bits // 2))
    high, low = value >> low_bits, value & low_mask
    for number, key in enumerate(rounds):
        if number % 2:
            low = low ^ (_mix(high ^ key) & low_mask)
        else:
            high = high ^ (_mix(low ^ key) & high_mask)
    return (high << low_bits) | low


def _mix(word: _Words) -> _Words:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), arithmetic modulo 2^64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@dataclass(frozen=True)
class Order:
    """The order in which a run reads the sequences of a dataset; every epoch has its own."""

    dataset: str
    """Content digest of the shards."""
    seed: int
    length: int
    """Sequences in an epoch."""

    def key(self, epoch: int) -> bytes:
        """Key of an epoch's permutation: a hash, so that (seed 1, epoch 2) is not (seed 2, epoch 1)."""
        text = f"bloomery order 1\n{self.dataset}\n{self.seed}\n{epoch}"
        return hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest()

    def sequences(self, first: int, count: int) -> Indices:
        """Sequence numbers of the global samples [first, first + count): [count]."""
        found = np.empty(count, np.int64)
        at = np.arange(first, first + count, dtype=np.int64)
        for epoch in range(first // self.length, (first + count - 1) // self.length + 1):
            here = at // self.length == epoch
            found[here] = permute(at[here] % self.length, self.length, self.key(epoch))
        return found
