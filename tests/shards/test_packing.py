"""Packing: best-fit-decreasing as defined, each token once, found from the bin and from the document."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.shards.dataset import Dataset
from bloomery.shards.packing import BestFit, Concat, best_fit, item_runs
from bloomery.shards.reader import InPlace, Shards
from tests.shards.data import dataset


def bins_of_definition(sizes, capacity, most):
    """Each item, largest first, goes into the bin with the least room that takes it."""
    rooms, items = [], []
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, room in enumerate(rooms) if room >= size and items[i] < most]
        if fitting:
            chosen = min(fitting, key=lambda i: rooms[i])
        else:
            chosen = len(rooms)
            rooms.append(capacity)
            items.append(0)
        rooms[chosen] -= size
        items[chosen] += 1
    return len(rooms)


@given(st.integers(1, 60), st.integers(1, 9), st.lists(st.integers(1, 60), min_size=1, max_size=150))
@settings(max_examples=150, deadline=None)
def test_bins_are_those_of_the_definition(capacity, most, sizes):
    sizes = [min(size, capacity) for size in sizes]
    distinct, counts = np.unique(sizes, return_counts=True)
    plan = best_fit(distinct.tolist(), counts.tolist(), capacity, most)
    assert plan.bins[-1] == bins_of_definition(sizes, capacity, most)
    held = np.zeros(capacity + 1, np.int64)
    for kind, bins in enumerate(np.diff(plan.bins)):
        entries = slice(plan.first[kind], plan.first[kind + 1])
        assert 0 < (plan.size[entries] * plan.many[entries]).sum() <= capacity
        assert plan.many[entries].sum() <= most
        np.add.at(held, plan.size[entries], bins * plan.many[entries])
    assert held[distinct].tolist() == counts.tolist()


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packing")
    dataset(folder)
    return Dataset.open(folder).streams("train"), folder / "tables"


def cut(stream, folder, length, most):
    shards = Shards(stream, InPlace())
    return BestFit.make(
        stream, length, most, shards.side, folder / f"{stream.source}-{length}-{most}"
    ), shards


@pytest.mark.parametrize("length, most", [(16, 5), (50, 64), (299, 2), (1000, 64)])
def test_every_token_is_in_one_bin_and_documents_that_fit_are_whole(streams, length, most):
    for stream in streams[0]:
        packed, shards = cut(stream, streams[1], length, most)
        row, at, start, size = packed.segments(np.arange(packed.samples))
        assert (size <= length + 1).all()
        assert (np.bincount(row, size) <= length + 1).all()
        assert np.bincount(row).min() >= 1
        assert np.bincount(row).max() <= most
        first = np.searchsorted(row, row)
        assert (at == np.cumsum(size) - size - (np.cumsum(size) - size)[first]).all()
        found = sorted(zip(start.tolist(), size.tolist(), strict=True))
        expected = []
        for number in range(len(stream.table)):
            starts = shards.open(number).side.starts.astype(int) + stream.start(number)
            for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
                pieces = max(1, -(-(end - begin - 1) // length))
                expected += [
                    (begin + k * length, min(length + 1, end - begin - k * length)) for k in range(pieces)
                ]
        assert found == sorted(expected)


def document_starts(stream):
    """Where each document of the stream begins, and its end."""
    sides = [
        stream.shard(number).side.starts[:-1] + stream.start(number) for number in range(len(stream.table))
    ]
    return np.append(np.concatenate(sides), stream.tokens).astype(np.int64)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_tokens_are_found_in_the_samples_that_hold_them(streams, data):
    stream = data.draw(st.sampled_from(streams[0]))
    length = data.draw(st.sampled_from([16, 50, 299]))
    start = data.draw(st.integers(0, stream.tokens - 1))
    stop = min(stream.tokens, start + data.draw(st.sampled_from([1, 7, 3000])))
    for kind in (Concat(stream, length), cut(stream, streams[1], length, 64)[0]):
        row, _, begin, size = kind.segments(np.arange(kind.samples))
        if isinstance(kind, BestFit):  # it looks for documents
            starts = document_starts(stream)
            first, last = np.searchsorted(starts, [start, stop - 1], "right")
            start, stop = starts[first - 1], starts[last]
        touched = np.unique(row[(begin < stop) & (begin + size > start)])
        assert kind.holding(int(start), int(stop)).tolist() == touched.tolist()


def test_a_bin_is_read_alone_as_among_all(streams):
    stream = streams[0][1]
    packed, _ = cut(stream, streams[1], 50, 64)
    whole = packed.segments(np.arange(packed.samples))
    for number in np.random.default_rng(0).permutation(packed.samples)[:40]:
        alone = packed.segments(np.array([number]))
        mine = whole.row == number
        assert [column.tolist() for column in alone[1:]] == [column[mine].tolist() for column in whole[1:]]


def test_a_million_documents_are_planned_in_50_ms_with_little_padding():
    """Heavy-tailed lengths as of web text: log-normal with a tail of long documents."""
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(6.2, 1.1, 1_000_000))
    lengths = np.maximum(1, np.where(random.random(1_000_000) < 0.03, lengths * 20, lengths)).astype(np.int64)
    distinct, counts = np.unique(lengths, return_counts=True)
    seconds = []
    for _ in range(3):
        began = time.process_time()
        runs = item_runs([(distinct.astype(np.uint32), counts.astype(np.uint32))], 2048)
        items = np.bincount(runs.size, np.diff(runs.before)).astype(np.int64)
        held = np.flatnonzero(items)
        plan = best_fit(held.tolist(), items[held].tolist(), 2049, 64)
        seconds.append(time.process_time() - began)
    padding = 1 - (items * np.arange(len(items))).sum() / (plan.bins[-1] * 2049)
    print(f"planned in {min(seconds) * 1e3:.1f} ms, padding {padding:.4%}")
    assert padding < 0.0015
    assert min(seconds) < 0.05
