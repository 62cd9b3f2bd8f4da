"""The mixture: counts are whole, exact, never fall, stay next to the plan, and are found from either end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.shards.schedule import GRID, Change, Mixture, Ramp, error_bound, grid_weights, grow_tree, leaves

weights = st.lists(st.floats(0, 1000).map(lambda w: round(w, 3)), min_size=1, max_size=9).filter(any)


@st.composite
def changes(draw):
    """A run of a few changes, some of which fall into the way of the one before."""
    first = draw(weights)
    found, start = [Change(0, tuple(first))], 0
    for _ in range(draw(st.integers(0, 3))):
        start += draw(st.integers(1, 700))
        row = draw(st.lists(st.floats(0, 9), min_size=len(first), max_size=len(first)).filter(any))
        over = draw(st.sampled_from([0, 1, 10, 300, 900]))
        found.append(Change(start, tuple(row), over, draw(st.sampled_from(["linear", "cosine"]))))
    return found


@given(changes())
@settings(max_examples=150, deadline=None)
def test_every_sample_is_of_one_source_and_counts_stay_within_one_of_the_plan(plan):
    mixture, count = Mixture(plan), 3000
    counts = mixture.counts(np.arange(count + 1))
    steps = np.diff(counts, axis=0)
    assert (counts.sum(1) == np.arange(count + 1)).all()
    assert (steps >= 0).all()
    assert (steps.sum(1) == 1).all()
    assert np.abs(counts - np.rint(mixture.plan(np.arange(count + 1)))).max() <= 1


@given(changes(), st.integers(0, 2500), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_reading_and_finding_are_inverse(plan, first, count):
    mixture = Mixture(plan)
    sources, positions = mixture.read(np.arange(first, first + count))
    for g, source, position in zip(range(first, first + count), sources, positions, strict=True):
        assert mixture.find(int(source), np.array([position]), first + count).tolist() == [g]
    beyond = mixture.counts(np.array([first]))[0]
    assert mixture.find(0, np.array([beyond[0]]), first).tolist() == [-1]


@given(changes(), st.integers(1, 2000), st.lists(st.floats(0, 9), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None)
def test_a_change_in_mid_run_leaves_the_past_and_every_position(plan, start, row):
    """Each source goes on where it was: what comes after the change is the next position, once."""
    plan = [change for change in plan if change.start < start]
    row = tuple(row[: len(plan[0].weights)])
    if not any(row):
        return
    before, after = Mixture(plan), Mixture([*plan, Change(start, row, 50)])
    g = np.arange(start + 1)
    assert (before.counts(g) == after.counts(g)).all()
    sources, positions = after.read(np.arange(start + 500))
    for source in range(len(row)):
        mine = positions[sources == source]
        assert mine.tolist() == list(range(len(mine)))


@given(weights, st.integers(0, 1 << 40))
@settings(max_examples=100, deadline=None)
def test_counts_anywhere_in_a_trillion_samples(row, g):
    mixture = Mixture([Change(0, tuple(row))])
    counts, plan = mixture.counts(np.array([g, g + 1])), mixture.plan(np.array([g, g + 1]))
    assert counts.sum(1).tolist() == [g, g + 1]
    assert np.diff(counts, axis=0).min() >= 0
    assert np.abs(counts - plan).max() <= 1.5


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=16))
@settings(max_examples=60, deadline=None)
def test_the_bound_of_the_tree_keeps_counts_next_to_the_plan(row):
    tree = grow_tree(row)
    assert sorted(leaves(tree)) == list(range(len(row)))
    bound = error_bound(tree, row)
    assert bound <= (0.5 if len(row) <= 2 else 1.0 if len(row) == 3 else 1.5) + 1e-9
    mixture = Mixture([Change(0, tuple(row))])
    g = np.arange(5000)
    assert np.abs(mixture.counts(g) - mixture.plan(g)).max() <= bound + 0.01


def test_weights_on_the_grid_leave_no_source_out():
    found = grid_weights(np.array([[1.0, 1e-12, 0.0, 3.0], [1.0, 1.0, 1.0, 0.0]]))
    assert found.sum(1).tolist() == [GRID, GRID]
    assert found[0].tolist() == [GRID // 4, 1, 0, 3 * GRID // 4 - 1]
    assert found[1, 3] == 0


def test_an_anneal_follows_its_curve():
    mixture = Mixture([Change(0, (1.0, 0.0)), Change(1000, (0.0, 1.0), 100_000, "cosine")])
    way = np.array([0, 0.25, 0.5, 1])
    expected = [*(100_000 * (way / 2 - np.sin(np.pi * way) / (2 * np.pi))), 51_000]
    counts = mixture.counts(np.array([1000, 26_000, 51_000, 101_000, 102_000]))[:, 1]
    assert np.abs(counts - expected).max() <= 1


@pytest.mark.parametrize(
    "plan",
    [
        [],
        [Change(1, (1.0,))],
        [Change(0, (0.0, 0.0))],
        [Change(0, (1.0, -1.0))],
        [Change(0, (1.0, float("nan")))],
        [Change(0, (1.0,)), Change(9, (2.0,)), Change(8, (1.0,))],
        [Change(0, (1.0,)), Change(5, (2.0, 1.0))],
    ],
)
def test_an_unusable_schedule_is_refused(plan):
    with pytest.raises(ValueError, match=r"weights|changes"):
        Mixture(plan)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), max_size=4), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_a_ramp_adds_up_and_is_inverted(stages, value):
    untils = np.cumsum([until for until, _ in stages]).tolist()
    ramp = Ramp(tuple(zip(untils, (v for _, v in stages), strict=True)), value)
    values = [ramp.at(step) for step in range(100)]
    assert [ramp.before(step) for step in range(101)] == [0, *np.cumsum(values).tolist()]
    owners = [step for step, count in enumerate(values) for _ in range(count)]
    assert [ramp.step(sample) for sample in range(len(owners))] == owners
