"""The sample order: frozen, a bijection, and a pure function of the global index."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.shards.order import Order, block_size, permute, unpermute

MASK = (1 << 64) - 1
KEY = bytes(range(48))
VECTOR_10 = [1, 2, 4, 6, 9, 8, 3, 5, 0, 7]
VECTOR_100_000 = "a62d8508443159053d6f91ad3baf4a11173f583802b86bbce16f302b8bfaa7b5"
VECTOR_ORDER = [64, 197, 225, 16, 78, 987, 925, 931, 967, 934]


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
    assert Order("ab" * 32, "web", 7, 1000, 300).samples(np.arange(1895, 1905)).tolist() == VECTOR_ORDER


@given(st.integers(1, 1 << 62), st.binary(min_size=48, max_size=48), st.data())
@settings(max_examples=60, deadline=None)
def test_equals_the_scalar_definition(length, key, data):
    index = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
    assert permute(np.array(index), length, key).tolist() == [scalar(i, length, key) for i in index]


@given(st.integers(1, 5000), st.binary(min_size=48, max_size=48))
@settings(max_examples=60, deadline=None)
def test_is_a_bijection(length, key):
    assert sorted(permute(np.arange(length), length, key)) == list(range(length))


@given(st.integers(1, 1 << 62), st.binary(min_size=48, max_size=48), st.data())
@settings(max_examples=60, deadline=None)
def test_has_an_inverse(length, key, data):
    index = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5)))
    assert unpermute(permute(index, length, key), length, key).tolist() == index.tolist()


orders = st.builds(
    lambda length, block, seed: Order("d" * 64, "web", seed, length, min(block, length)),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(0, 5),
)


@given(orders, st.lists(st.integers(1, 200), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_does_not_depend_on_slicing(order, counts):
    ends = np.cumsum([0, *counts])
    pieces = [order.samples(np.arange(a, b)) for a, b in pairwise(ends)]
    assert np.concatenate(pieces).tolist() == order.samples(np.arange(ends[-1])).tolist()


@given(orders)
@settings(max_examples=60, deadline=None)
def test_each_epoch_reads_everything_once_and_a_super_block_at_a_time(order):
    for epoch in range(3):
        positions = np.arange(order.length * epoch, order.length * (epoch + 1))
        samples = order.samples(positions)
        assert sorted(samples) == list(range(order.length))
        assert order.positions(samples, epoch).tolist() == positions.tolist()
        for start in range(0, order.length, order.block):
            first, size = order.block_at(int(positions[start]))
            assert sorted(samples[start : start + order.block]) == list(range(first, first + size))


def test_epochs_seeds_and_streams_do_not_stand_for_each_other():
    def read(seed, epoch, stream="web", root="d" * 64):
        return tuple(Order(root, stream, seed, 997, 100).samples(np.arange(997) + 997 * epoch))

    seen = [read(1, 2), read(2, 1), read(1, 1), read(1, 1, stream="code"), read(1, 1, root="e" * 64)]
    assert len(set(seen)) == len(seen)


def test_a_super_block_is_about_32_shards():
    assert block_size(samples=1_000_000, shards=320) == 100_000
    assert block_size(samples=10, shards=2) == 10
    assert block_size(samples=3, shards=1000) == 1


def test_leaves_no_visible_structure():
    """Neighbours end far apart, and the image does not correlate with the index."""
    image = permute(np.arange(1 << 16), 1 << 16, KEY)
    assert abs(np.corrcoef(np.arange(1 << 16), image)[0, 1]) < 0.02
    assert abs(np.abs(np.diff(image)).mean() / (1 << 16) - 1 / 3) < 0.01


@pytest.mark.parametrize("index", [[-1], [10], [3, 10]])
def test_refuses_an_index_outside(index):
    with pytest.raises(ValueError, match=r"outside \[0, 10\)"):
        permute(np.array(index), 10, KEY)
