"""The arithmetic of boxes, and an index that must add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.checkpoint import MASTER, MOMENTS, boxes, check_coverage
from training.layout import CheckpointError, Part

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@given(shapes, st.data())
@settings(max_examples=300, deadline=None)
def test_boxes_are_the_flat_range_in_order(shape, data):
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    numbers = np.arange(size).reshape(shape)
    found = list(boxes(shape, start, stop))
    pieces = [
        numbers[tuple(slice(o, o + n) for o, n in zip(offset, extent, strict=True))].reshape(-1)
        for offset, extent in found
    ]
    assert np.concatenate([np.empty(0, int), *pieces]).tolist() == list(range(start, stop))
    assert len(found) <= 2 * len(shape) - 1


def part(name, kind, offset, extent):
    return Part(file="f", key=f"{name}/{kind}/{offset}", name=name, kind=kind, offset=offset, extent=extent)


def test_a_lost_or_doubled_writer_is_noticed():
    whole = tuple(part("w", kind, (0, 0), (4, 3)) for kind in (MASTER, *MOMENTS))
    check_coverage({"w": (4, 3)}, whole)
    with pytest.raises(CheckpointError, match="w/exp_avg_sq: 0 elements written, expected 12"):
        check_coverage({"w": (4, 3)}, whole[:2])
    with pytest.raises(CheckpointError, match="w/master: 24 elements written, expected 12"):
        check_coverage({"w": (4, 3)}, (*whole, whole[0]))
