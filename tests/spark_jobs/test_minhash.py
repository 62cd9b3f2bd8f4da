"""MinHash: shingles are a set, keys are frozen, the estimate is right; components depend on no order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.config.corpus import MinHashConfig
from spark_jobs import minhash, pairs, tables
from spark_jobs.components import forest
from spark_jobs.minhash import (
    Hashes,
    MinHash,
    jaccard,
    normalised,
    shingles,
    word_hashes,
    word_ngrams,
    words_of,
)
from spark_jobs.pairs import LEADERS, _pair_up, _shingle, _verify
from spark_jobs.tables import record_batch
from tests.spark_jobs.corpus import prose

FROZEN = [-8211753855177477893, 6183160233490201454, -526711655181308474]


def drawn(bands: int, rows: int, seed: int, overlap: bool = False) -> MinHash:
    return MinHash.drawn(MinHashConfig(bands=bands, rows=rows, seed=seed, overlap=overlap))


def keys_of(functions: MinHash, found: Hashes) -> npt.NDArray[np.int64]:
    """Keys of one text, which are the same whatever stands beside it."""
    beside = functions.sketch(found + np.uint64(1))
    keys = functions.band_keys(np.stack([beside, functions.sketch(found)]))
    assert np.array_equal(keys[1], functions.band_keys(functions.sketch(found)[None])[0])
    return keys[1]


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
    keys = keys_of(drawn(3, 2, seed=1), word_ngrams("the quick brown fox jumps over the lazy dog", 3))
    assert keys.tolist() == FROZEN
    assert keys_of(drawn(3, 2, seed=2), word_ngrams("the quick", 3)).tolist() != FROZEN


def test_equal_rows_estimate_the_jaccard():
    draw = random.Random(1)
    pool = np.array([draw.getrandbits(64) for _ in range(3000)], np.uint64)
    one, other = pool[:2000], pool[1000:]  # Jaccard 1/3
    functions = drawn(2000, 1, seed=3)
    share = np.mean(keys_of(functions, one) == keys_of(functions, other))
    assert share == pytest.approx(1 / 3, abs=0.04)
    assert jaccard(*((s >> np.uint64(32)).astype(np.uint32) for s in (one, other))) == pytest.approx(1 / 3)


def test_near_duplicates_share_a_band_and_others_do_not():
    functions = drawn(14, 8, seed=1, overlap=True)
    text = prose(1, 40)
    near = text.replace("river", "stream", 1)
    keys = [set(keys_of(functions, word_ngrams(t, 5)).tolist()) for t in (text, near, prose(2, 40))]
    assert keys[0] & keys[1] and not keys[0] & keys[2]
    assert len(keys[0]) == 28


@pytest.mark.parametrize("size", [1, 2, 7, 60, 500, 5000])
def test_a_sketch_is_that_of_the_set_whatever_its_size(size):
    """Each bin agrees with probability J, in sets of a few shingles as well as in long ones."""
    draw, agreed, true = np.random.default_rng(size), [], []
    for seed in range(30):
        pool = draw.integers(0, 1 << 64, size * 3 // 2 + 1, dtype=np.uint64)
        one, other = pool[:size], np.concatenate([pool[size // 2 :], pool[size // 2 :]])
        functions = drawn(14, 8, seed)
        agreed.append(np.mean(functions.sketch(one) == functions.sketch(other)))
        true.append(jaccard(*(np.unique(s).astype(np.uint32) for s in (one, other))))
        assert np.array_equal(functions.sketch(one), functions.sketch(one[::-1].repeat(2)))
    assert np.mean(agreed) == pytest.approx(np.mean(true), abs=0.03)


def test_bands_that_overlap_propose_what_bands_do_and_more():
    texts = [prose(number, 30) for number in range(3)]
    for text in texts:
        with_, without = (
            keys_of(drawn(14, 8, 1, overlap), word_ngrams(text, 5)) for overlap in (True, False)
        )
        assert with_[:14].tolist() == without.tolist() and len(set(with_.tolist())) == 28
    assert len(keys_of(drawn(5, 1, 1, overlap=True), word_ngrams(texts[0], 5))) == 5


MEMBERS = st.lists(
    st.tuples(
        st.integers(-1, 1),
        st.sampled_from("abcdefghijkl"),
        st.sampled_from([(True, True), (True, False), (False, True)]),
        st.integers(1, 4),
    ),
    max_size=30,
)


@given(MEMBERS, st.data())
@settings(deadline=None, max_examples=500)  # the first call imports pyarrow
def test_a_bucket_gains_and_loses_pairs_of_each_content_with_its_leaders(members, data):
    """Whatever the batches, and however often a content stands in a bucket."""
    rows = sorted((band, content, *flags) for band, content, flags, times in members for _ in range(times))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    kind = "band bigint, content string, was boolean, now boolean"
    batches = [record_batch(rows[start:stop], kind) for start, stop in pairwise([0, *cuts, len(rows)])]
    usual = tables.ROWS
    try:
        tables.ROWS = data.draw(st.integers(1, 10))
        found = [tuple(row.values()) for batch in _pair_up(iter(batches)) for row in batch.to_pylist()]
    finally:
        tables.ROWS = usual
    before, after = (
        {
            (band, a, b)
            for band, bucket in _buckets(row[:2] for row in rows if row[flag]).items()
            for a in bucket[:LEADERS]
            for b in bucket
            if a < b
        }
        for flag in (2, 3)
    )
    gained, lost = ((*pair, True) for pair in after - before), ((*pair, False) for pair in before - after)
    assert sorted(found) == sorted([*gained, *lost])


def _buckets(rows: Iterable[tuple[int, str]]) -> dict[int, list[str]]:
    buckets: dict[int, list[str]] = {}
    for band, content in sorted(set(rows)):
        buckets.setdefault(band, []).append(content)
    return buckets


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_a_pairs_jaccard_is_that_of_its_texts_however_they_are_batched(monkeypatch, size):
    """A long text may go to many, so what one batch makes is given on in pieces."""
    monkeypatch.setattr(pairs, "BATCH_BYTES", size)
    texts = {name: prose(number // 2) + name for number, name in enumerate("abcdefgh")}
    wanted = [(a, b) for a in "abd" for b in "bdefgh" if a < b]
    own = {*wanted, *((a, a) for a, _ in wanted)}
    to = [
        [{"a": a, "bands": None if a == name else [ord(a), ord(name)]} for a in "abd" if (a, name) in own]
        for name in texts
    ]
    end = pa.struct([("a", pa.string()), ("bands", pa.list_(pa.int64()))])
    columns = [pa.array(texts), pa.array(to, pa.list_(end)), pa.array(texts.values())]
    made = list(_shingle(5, iter([pa.RecordBatch.from_arrays(columns, ["content", "to", "text"])])))
    assert (len(made) == 1) == (size == 1 << 20)
    rows = sorted((row for batch in made for row in batch.to_pylist()), key=lambda row: (row["a"], row["b"]))
    cut = [pa.RecordBatch.from_pylist(rows[at : at + 3], made[0].schema) for at in range(0, len(rows), 3)]
    found = [tuple(row.values()) for batch in _verify(iter(cut)) for row in batch.to_pylist()]
    told = {pair: jaccard(*(shingles(texts[name], 5) for name in pair)) for pair in wanted}
    assert found == [(a, b, told[a, b], [ord(a), ord(b)]) for a, b in wanted]
    with pytest.raises(AssertionError, match="do not stand before"):
        list(_verify(iter([pa.RecordBatch.from_pylist(rows[1:], made[0].schema)])))


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
