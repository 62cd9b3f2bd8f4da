"""MinHash: shingles are a set, keys are frozen, the estimate is right; components depend on no order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import minhash
from spark_jobs.components import forest
from spark_jobs.minhash import MinHash, jaccard, normalised, shingles, word_hashes, words_of
from tests.spark_jobs.corpus import prose

FROZEN = [-7800559962542336001, -5347620574820533320, -2856700008250500010]


def test_shingles_are_a_set_of_words_in_a_row():
    assert len(shingles("a b c d e f", 5)) == 2
    assert np.array_equal(shingles("A, b; c d e F!", 5), shingles("a b c d e f", 5))
    assert len(shingles("one two", 5)) == len(shingles("", 5)) == len(shingles("?!", 5)) == 1
    assert len(shingles("a a a a a a a", 2)) == 1
    assert not np.array_equal(shingles("a b", 2), shingles("b a", 2))
    assert normalised("A  b\n\tC") == "a b c"


@given(st.text() | st.text("ab _9é\u0130\u4e2d\U0001d7d8.,\n"), st.integers(1, 9))
def test_hashes_are_those_of_the_words_in_blocks_of_any_size(text, block):
    """One a word, equal for equal words and for no others, wherever a block ends."""
    words, whole = words_of(text), word_hashes(text)
    assert len(whole) == len(words) and len(set(whole.tolist())) == len(set(words))
    assert np.array_equal(whole, [word_hashes(word)[0] for word in words])
    usual = minhash.BLOCK
    try:
        minhash.BLOCK = block
        assert np.array_equal(word_hashes(text), whole)
    finally:
        minhash.BLOCK = usual


def test_keys_are_frozen():
    """Equal on every machine and with every numpy, or a corpus would change under the same config."""
    keys = MinHash.drawn(3, 2, seed=1).band_keys(shingles("the quick brown fox jumps over the lazy dog", 3))
    assert keys.tolist() == FROZEN
    assert MinHash.drawn(3, 2, seed=2).band_keys(shingles("the quick", 3)).tolist() != FROZEN


def test_equal_rows_estimate_the_jaccard():
    draw = random.Random(1)
    pool = np.array([draw.getrandbits(64) for _ in range(3000)], np.uint64)
    one, other = pool[:2000], pool[1000:]  # Jaccard 1/3
    functions = MinHash.drawn(2000, 1, seed=3)
    share = np.mean(functions.band_keys(one) == functions.band_keys(other))
    assert share == pytest.approx(1 / 3, abs=0.04)
    assert jaccard(one.view(np.int64), other.view(np.int64)) == pytest.approx(1 / 3)


def test_near_duplicates_share_a_band_and_others_do_not():
    functions = MinHash.drawn(14, 8, seed=1)
    text = prose(1, 40)
    near = text.replace("river", "stream", 1)
    keys = [set(functions.band_keys(shingles(t, 5)).tolist()) for t in (text, near, prose(2, 40))]
    assert keys[0] & keys[1] and not keys[0] & keys[2]
    assert len(keys[0]) == 14


@given(
    edges=st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("abcdefghij")), max_size=20),
    draw=st.randoms(),
)
def test_components(edges, draw):
    found = forest(edges)
    shuffled = [draw.choice([(a, b), (b, a)]) for a, b in draw.sample(edges, len(edges))]
    assert forest(shuffled) == found
    # A forest of parts joined again is the forest of the whole.
    half = len(edges) // 2
    assert forest([*forest(edges[:half]).items(), *forest(edges[half:]).items()]) == found
    for a, b in edges:
        assert found.get(a, a) == found.get(b, b)
    for node, least in found.items():
        assert least < node and least not in found
