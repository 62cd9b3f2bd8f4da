"""How many samples of each source a run has read after any number of them: a closed form in whole numbers.

    weights by sample       stairs of constant weights in parts of 2^22; an anneal is up to 4,096 of them
    a binary tree           at each node m samples are split: left = round(plan of left where the node's is m)
    counts(g)               one pass down the tree: exact, adds up to g, never falls, in O(1) for any g

A split's slope is between 0 and 1, so one more sample at a node is one more at exactly one child: for every g
one source gives the next sample, and position k of a source is met exactly once. The error of a leaf is at
most (1 + sum of w_leaf / w_node over the nodes between root and leaf) / 2, and the tree is grown to keep it
small: 1/2 for two sources, at most 1 for three, 3/2 for more; so a count is the plan's rounded, or its
neighbour. (Tijdeman, Discrete Math. 32, 1980, has a sequence within 1 for any number, but no way to enter it
in the middle.)

A change of weights begins from the counts reached: no source loses or repeats a sample, wherever it falls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Curve = Literal["linear", "cosine"]

BITS = 22
GRID = 1 << BITS
"""Weights are whole parts of it: with 2^41 samples all products fit 63 bits."""
STAIRS = 4096
"""Most stairs of an anneal; the staircase is within one sample of the curve up to 2^27 samples."""


class Change(NamedTuple):
    """New weights of the sources."""

    start: int
    """Sample from which on they are approached."""
    weights: tuple[float, ...]
    """Of each source, relative to each other: [sources]."""
    over: int = 0
    """Samples that the way from the weights before takes; 0 is at once."""
    curve: Curve = "linear"


Tree = int | tuple["Tree", "Tree"]
"""A source's number, or two subtrees."""


def grid_weights(weights: npt.NDArray[np.float64]) -> Indices:
    """Whole weights that add up to `GRID`, none but a zero becomes zero: [..., sources]."""
    exact = weights / weights.sum(-1, keepdims=True) * GRID
    whole: Indices = np.maximum(np.floor(exact), (exact > 0)).astype(np.int64)
    left = GRID - whole.sum(-1, keepdims=True)
    rank = np.argsort(np.argsort(whole - exact, axis=-1, kind="stable"), axis=-1)
    whole = whole + (rank < left)
    largest = whole.argmax(-1, keepdims=True)  # pays for the sources that are smaller than one part
    over = GRID - whole.sum(-1, keepdims=True)
    np.put_along_axis(whole, largest, np.take_along_axis(whole, largest, -1) + over, -1)
    return whole


def grow_tree(weights: Sequence[float]) -> Tree:
    """The tree whose bound of the error is small: each source, heaviest first, goes where it harms least."""
    order = sorted((i for i, w in enumerate(weights) if w), key=lambda i: (-weights[i], i))
    tree: Tree = order[0]
    for source in order[1:]:
        tree = min(_insertions(tree, source), key=lambda grown: (error_bound(grown, weights), str(grown)))
    for source in (i for i, w in enumerate(weights) if not w):
        tree = (tree, source)
    return tree


def error_bound(tree: Tree, weights: Sequence[float]) -> float:
    """Most samples that a source's count is away from its plan."""
    return _bound(tree, weights, 0.0, root=True)[0]


def _bound(tree: Tree, weights: Sequence[float], above: float, root: bool) -> tuple[float, float]:
    """(bound, weight) of a subtree; `above` is the sum of 1 / weight of the nodes over it but the root."""
    if isinstance(tree, int):
        return (1 + weights[tree] * above) / 2, weights[tree]
    weight = sum(weights[leaf] for leaf in leaves(tree))
    below = above if root else above + 1 / weight
    return max(_bound(child, weights, below, False)[0] for child in tree), weight


def _insertions(tree: Tree, source: int) -> Iterable[Tree]:
    yield tree, source
    if isinstance(tree, tuple):
        left, right = tree
        yield from ((grown, right) for grown in _insertions(left, source))
        yield from ((left, grown) for grown in _insertions(right, source))


def leaves(tree: Tree) -> list[int]:
    """Sources of a tree."""
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in leaves(child)]


@dataclass(frozen=True)
class _Part:
    """The samples from one change to the next; everything counts from its start."""

    start: int
    before: Indices
    """Counts at the start: [sources]."""
    tree: Tree
    starts: Indices
    """First sample of each stair, from the part's start: [stairs]."""
    weights: Indices
    """Of each stair, in parts of `GRID`: [stairs, sources]."""

    @cached_property
    def planned(self) -> Indices:
        """Planned samples before each stair, times `GRID`: [stairs, sources]."""
        grown = self.weights[:-1] * np.diff(self.starts)[:, None]
        return np.concatenate([np.zeros((1, grown.shape[1]), np.int64), grown.cumsum(0)])

    def counts(self, done: Indices) -> Indices:
        """[N] samples since the start -> [N, sources]."""
        out = np.empty((len(done), self.weights.shape[1]), np.int64)
        self._split(self.tree, done, out)
        return out + self.before

    def plan(self, done: Indices) -> npt.NDArray[np.float64]:
        """What `counts` rounds: [N] -> [N, sources]."""
        stair = np.searchsorted(self.starts, done, "right") - 1
        parts = self.planned[stair] + (done - self.starts[stair])[:, None] * self.weights[stair]
        return parts / GRID + self.before

    def _split(self, tree: Tree, done: Indices, out: Indices) -> None:
        if isinstance(tree, int):
            out[:, tree] = done
            return
        left, node = leaves(tree[0]), leaves(tree)
        (left_weight, left_planned), (weight, planned) = self._sums(left), self._sums(node)
        stair = np.searchsorted(planned, done << BITS, "right") - 1
        over, slope = (done << BITS) - planned[stair], np.maximum(weight[stair], 1)
        reached = left_planned[stair] + over // slope * left_weight[stair]
        reached += over % slope * left_weight[stair] // slope
        here = np.clip((reached + GRID // 2) >> BITS, 0, done)
        self._split(tree[0], here, out)
        self._split(tree[1], done - here, out)

    def _sums(self, sources: list[int]) -> tuple[Indices, Indices]:
        return self.weights[:, sources].sum(1), self.planned[:, sources].sum(1)


class Mixture:
    """The sources of all samples of a run."""

    def __init__(self, changes: Sequence[Change]) -> None:
        """Lays the parts out.

        Args:
            changes: in the order of their starts; the first starts at 0 and at once.

        Raises:
            ValueError: changes that are not so, weights that are not numbers >= 0 with one above 0.
        """
        if not changes or changes[0].start or changes[0].over:
            raise ValueError("the first weights hold from sample 0 on, at once")
        if any(b.start < a.start for a, b in pairwise(changes)):
            raise ValueError("changes stand in the order of their starts")
        for change in changes:
            if len(change.weights) != len(changes[0].weights) or not _usable(change.weights):
                raise ValueError(f"weights {change.weights}: one number >= 0 a source, one of them above 0")
        self.sources = len(changes[0].weights)
        self._parts: list[_Part] = []
        weights = np.array(changes[0].weights, np.float64) / sum(changes[0].weights)
        counts = np.zeros(self.sources, np.int64)
        for change, after in zip(changes, [*changes[1:], None], strict=True):
            target = np.array(change.weights, np.float64) / sum(change.weights)
            self._parts.append(_part(change, weights, target, counts))
            if after:
                counts = self._parts[-1].counts(np.array([after.start - change.start]))[0]
                weights = _between(change, weights, target, after.start - change.start)
        self._starts = np.array([part.start for part in self._parts])

    def counts(self, samples: Indices) -> Indices:
        """Samples of each source among the first `samples` of the run: [N] -> [N, sources]."""
        out = np.empty((len(samples), self.sources), np.int64)
        for number, rows in self._by_part(samples):
            part = self._parts[number]
            out[rows] = part.counts(samples[rows] - part.start)
        return out

    def plan(self, samples: Indices) -> npt.NDArray[np.float64]:
        """The plan that `counts` rounds; after a change, from the counts reached: [N] -> [N, sources]."""
        out = np.empty((len(samples), self.sources))
        for number, rows in self._by_part(samples):
            part = self._parts[number]
            out[rows] = part.plan(samples[rows] - part.start)
        return out

    def read(self, samples: Indices) -> tuple[Indices, Indices]:
        """Source of each of these samples of the run, and its position in that source's order: [N] -> [N]."""
        before, after = self.counts(np.concatenate([samples, samples + 1])).reshape(
            2, len(samples), self.sources
        )
        sources = (after - before).argmax(1)
        return sources, before[np.arange(len(samples)), sources]

    def find(self, source: int, positions: Indices, samples: int) -> Indices:
        """Which of the run's first `samples` reads each position of a source, -1 for none: [N] -> [N]."""
        low, high = np.zeros(len(positions), np.int64), np.full(len(positions), samples, np.int64)
        while (low < high).any():  # the least g whose first g + 1 samples hold position + 1 of the source
            middle = (low + high) // 2
            enough = self.counts(middle + 1)[:, source] > positions
            low, high = np.where(enough | (low >= high), low, middle + 1), np.where(enough, middle, high)
        return np.where(low < samples, low, -1)

    def _by_part(self, samples: Indices) -> list[tuple[int, Indices]]:
        numbers = np.searchsorted(self._starts, samples, "right") - 1
        return [(int(n), np.flatnonzero(numbers == n)) for n in np.unique(numbers)]


def _usable(weights: Sequence[float]) -> bool:
    return all(math.isfinite(w) and w >= 0 for w in weights) and sum(weights) > 0


Shares = npt.NDArray[np.float64]


def _part(change: Change, before: Shares, after: Shares, counts: Indices) -> _Part:
    """Stairs of equal length on the way from the weights `before`, then one without end."""
    stairs = min(STAIRS, change.over)
    starts = np.arange(stairs + 1) * change.over // max(stairs, 1)
    middles = (starts[:-1] + starts[1:]) / 2
    rows = [*(_between(change, before, after, middle) for middle in middles.tolist()), after]
    tree = grow_tree((before + after if stairs else after).tolist())
    return _Part(change.start, counts, tree, starts, grid_weights(np.stack(rows)))


def _between(change: Change, before: Shares, after: Shares, done: float) -> Shares:
    """The weights `done` samples after a change began."""
    way = min(1.0, done / change.over) if change.over else 1.0
    return before + (after - before) * (
        (1 - math.cos(math.pi * way)) / 2 if change.curve == "cosine" else way
    )


@dataclass(frozen=True)
class Ramp:
    """A whole number for each step: some values until given steps, then one without end."""

    stages: tuple[tuple[int, int], ...]
    """(until step, value), in order."""
    value: int
    """From the last stage on."""

    def at(self, step: int) -> int:
        """The value of a step."""
        return next((value for until, value in self.stages if step < until), self.value)

    def before(self, step: int) -> int:
        """Sum of the values of all steps before `step`."""
        total = begin = 0
        for until, value in self.stages:
            total += value * (min(step, until) - begin)
            begin = min(step, until)
        return total + self.value * (step - begin)

    def step(self, total: int) -> int:
        """The step in which the sum over all steps passes `total`."""
        done = begin = 0
        for until, value in self.stages:
            if total < done + value * (until - begin):
                return begin + (total - done) // value
            done, begin = done + value * (until - begin), until
        return begin + (total - done) // self.value
