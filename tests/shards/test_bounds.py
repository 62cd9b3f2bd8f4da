"""Bounds of shards: sizes differ by at most the largest item, whatever the lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bloomery.shards.bounds import TOLERANCE, cut, spread

skewed = st.one_of(st.integers(1, 3), st.integers(1, 1000), st.just(100_000), st.integers(1, 1 << 30))


@given(st.lists(skewed, min_size=1, max_size=60), st.integers(1, 80))
@example([10, 10, 1], 2)
@example([1, 1 << 30, 1], 3)
@settings(max_examples=500, deadline=None)
def test_two_shards_differ_by_at_most_the_largest_item(sizes, shards):
    firsts = spread(np.array(sizes, np.int64), shards)
    held = np.add.reduceat(sizes, firsts)
    assert firsts[0] == 0 and (np.diff(firsts) > 0).all() and len(firsts) <= shards
    assert held.sum() == sum(sizes) and held.max() - held.min() <= max(sizes)


@given(st.lists(st.integers(1, 50), min_size=400, max_size=600), st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_as_many_shards_as_wanted_where_items_are_small(sizes, shards):
    assert len(spread(np.array(sizes, np.int64), shards)) == shards


def test_nothing_has_no_shard():
    assert len(spread(np.zeros(0, np.int64), 3)) == 0


clustered = st.one_of(
    st.integers(0, (1 << 64) - 1), st.integers(5 << 44, (5 << 44) + 30), st.integers(7 << 44, (8 << 44) - 1)
)


@given(st.lists(st.tuples(clustered, skewed), min_size=1, max_size=80), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_shards_cut_by_keys_differ_by_2_percent_or_one_document(documents, shards):
    """However the keys crowd; documents of one key stay together."""
    keys = np.array([key for key, _ in sorted(documents)], np.uint64)
    sizes = np.array([size for _, size in sorted(documents)], np.int64)
    firsts = cut(keys, sizes, shards)
    held = np.bincount(np.searchsorted(firsts, keys, "right") - 1, sizes)
    of_one_key = np.add.reduceat(sizes, np.unique(keys, return_index=True)[1]).max()
    assert firsts[0] <= keys[0] and len(firsts) <= shards and held.sum() == sizes.sum()
    assert held.min() > 0
    assert held.max() - held.min() <= max(TOLERANCE * sizes.sum() / shards, of_one_key)
