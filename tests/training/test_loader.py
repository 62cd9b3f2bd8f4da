"""What the ranks read is one order, whatever their number."""

from __future__ import annotations

import numpy as np
import pytest

from bloomery.artifacts.run import artifact
from bloomery.errors import BloomeryError
from bloomery.shards.stream import TokenStream
from training.loader import FIRST_RECEIPT, Loader, chain


@pytest.fixture
def stream(world, tmp_path):
    return TokenStream.open(artifact(world.store, world.upstream["shard"], "shards").local(tmp_path), "train")


def loaders(stream, ranks, length=32, batch=8):
    return [Loader(stream, "d" * 64, 1, length, batch, rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_world_size_only_slices(stream, ranks):
    [alone], together = loaders(stream, 1), loaders(stream, ranks)
    for step in (0, 1, 2, 500):
        whole = np.concatenate([loader.step(step) for loader in together])
        assert np.array_equal(whole, alone.step(step))
    marks = np.concatenate([loader.take_marks() for loader in together], axis=1)
    assert chain(FIRST_RECEIPT, marks) == chain(FIRST_RECEIPT, alone.take_marks())


def test_the_receipt_is_a_chain(stream):
    [whole], [first], [second] = (loaders(stream, 1) for _ in range(3))
    for step in range(6):
        whole.step(step)
        (first if step < 3 else second).step(step)
    middle = chain(FIRST_RECEIPT, first.take_marks())
    assert chain(middle, second.take_marks()) == chain(FIRST_RECEIPT, whole.take_marks())


def test_the_receipt_notices_another_token(stream):
    [loader] = loaders(stream, 1)
    loader.step(0)
    marks = loader.take_marks()
    other = marks.copy()
    other[0, 3] ^= np.uint64(1)
    assert chain(FIRST_RECEIPT, marks) != chain(FIRST_RECEIPT, other)


def test_an_epoch_reads_every_sequence_once(stream):
    [loader] = loaders(stream, 1, length=64, batch=1)
    first = [tuple(loader.step(step)[0]) for step in range(loader.order.length)]
    every = stream.gather(np.arange(loader.order.length), 64)
    assert sorted(first) == sorted(map(tuple, every))


def test_too_short_a_split_is_refused(stream):
    with pytest.raises(BloomeryError, match="fewer than one sequence of 1000000"):
        loaders(stream, 1, length=1_000_000)
