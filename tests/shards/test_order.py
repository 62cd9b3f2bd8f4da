"""The sample order: frozen, a bijection, and a pure function of the global index."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.shards.order import Order, permute

MASK = (1 << 64) - 1
KEY = bytes(range(48))
VECTOR_10 = [1, 2, 4, 6, 9, 8, 3, 5, 0, 7]
VECTOR_100_000 = "a62d8508443159053d6f91ad3baf4a11173f583802b86bbce16f302b8bfaa7b5"
VECTOR_ORDER = [831, 836, 286, 790, 419, 944, 340, 986, 448, 347]


def scalar(index: int, length: int, key: bytes) -> int:
    """The same permutation, one index at a time in plain integers."""
    bits = max(2, (length - 1).bit_length())
    low_bits, high_bits = bits // 2, bits - bits // 2

    def mix(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
        return word ^ word >> 31

    while True:
        high, low = index >> low_bits, index & (1 << low_bits) - 1
        for number in range(6):
            word = int.from_bytes(key[8 * number : 8 * number + 8], "little")
            if number % 2:
                low ^= mix(high ^ word) & (1 << low_bits) - 1
            else:
                high ^= mix(low ^ word) & (1 << high_bits) - 1
        index = high << low_bits | low
        if index < length:
            return index


def test_published_vectors():
    """Frozen: another order would make every run's data another."""
    assert permute(np.arange(10), 10, KEY).tolist() == VECTOR_10
    image = permute(np.arange(100_000), 100_000, KEY)
    assert hashlib.sha256(image.astype("<i8").tobytes()).hexdigest() == VECTOR_100_000
    assert Order("ab" * 32, 7, 1000).sequences(1995, 10).tolist() == VECTOR_ORDER


@given(st.integers(1, 1 << 62), st.binary(min_size=48, max_size=48), st.data())
@settings(max_examples=60, deadline=None)
def test_equals_the_scalar_definition(length, key, data):
    index = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
    assert permute(np.array(index), length, key).tolist() == [scalar(i, length, key) for i in index]


@given(st.integers(1, 5000), st.binary(min_size=48, max_size=48))
@settings(max_examples=60, deadline=None)
def test_is_a_bijection(length, key):
    assert sorted(permute(np.arange(length), length, key)) == list(range(length))


@given(st.integers(1, 300), st.integers(0, 5), st.lists(st.integers(1, 200), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_does_not_depend_on_slicing(length, seed, counts):
    order, whole = Order("d" * 64, seed, length), sum(counts)
    ends = np.cumsum([0, *counts])
    pieces = [order.sequences(int(a), int(b - a)) for a, b in pairwise(ends)]
    assert np.concatenate(pieces).tolist() == order.sequences(0, whole).tolist()


def test_each_epoch_reads_everything_once_in_an_order_of_its_own():
    order = Order("d" * 64, 1, 997)
    epochs = [order.sequences(997 * epoch, 997) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(997)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_seed_and_epoch_do_not_stand_for_each_other():
    assert Order("d" * 64, 1, 997).key(2) != Order("d" * 64, 2, 997).key(1)
    assert Order("d" * 64, 1, 997).key(0) != Order("e" * 64, 1, 997).key(0)


def test_leaves_no_visible_structure():
    """Neighbours end far apart, and the image does not correlate with the index."""
    image = permute(np.arange(1 << 16), 1 << 16, KEY)
    assert abs(np.corrcoef(np.arange(1 << 16), image)[0, 1]) < 0.02
    assert abs(np.abs(np.diff(image)).mean() / (1 << 16) - 1 / 3) < 0.01


@pytest.mark.parametrize("index", [[-1], [10], [3, 10]])
def test_refuses_an_index_outside(index):
    with pytest.raises(ValueError, match=r"outside \[0, 10\)"):
        permute(np.array(index), 10, KEY)
