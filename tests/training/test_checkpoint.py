"""The arithmetic of boxes, and an index that must add up."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.checkpoint import boxes, check_coverage
from training.layout import CheckpointError, Logical, Part

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


def parts(*found):
    return tuple(
        Part(file="f", name="w", number=number, offset=offset, extent=extent)
        for number, (offset, extent) in enumerate(found)
    )


def test_a_lost_or_doubled_writer_is_noticed():
    tensors = {"w": Logical(shape=(4, 3), kinds=("master",))}
    upper, lower = ((0, 0), (2, 3)), ((2, 0), (2, 3))
    check_coverage(tensors, parts(upper, lower))
    with pytest.raises(CheckpointError, match="w: 6 elements written, expected 12"):
        check_coverage(tensors, parts(upper))
    with pytest.raises(CheckpointError, match=r"the box at \[0, 0\] is written twice"):
        check_coverage(tensors, parts(upper, upper))
    with pytest.raises(CheckpointError, match="reaches beyond"):
        check_coverage(tensors, parts(upper, ((3, 0), (2, 3))))


@given(shapes, st.data())
@settings(max_examples=300, deadline=None)
def test_each_element_is_written_once_or_it_is_noticed(shape, data):
    """Boxes of flat ranges, one of them maybe moved: against counting element by element."""
    size = math.prod(shape)
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=5))})
    found = [box for low, high in pairwise(cuts) for box in boxes(shape, low, high)]
    moved = data.draw(st.integers(0, len(found) - 1))
    offset = tuple(data.draw(st.integers(0, n - e)) for n, e in zip(shape, found[moved][1], strict=True))
    found[moved] = offset, found[moved][1]
    written = np.zeros(shape, int)
    for start, extent in found:
        written[tuple(slice(o, o + n) for o, n in zip(start, extent, strict=True))] += 1
    tensors = {"w": Logical(shape=shape, kinds=("master",))}
    if (written == 1).all():
        check_coverage(tensors, parts(*found))
    else:
        with pytest.raises(CheckpointError, match="is written twice"):
            check_coverage(tensors, parts(*found))
