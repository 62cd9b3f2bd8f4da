"""How a stream of documents is cut into samples of L inputs and as many targets: L + 1 tokens.

concat     sample i = tokens [i*L, i*L + L] of the stream; neighbours share one, so each is a target once
best_fit   documents longer than L + 1 are cut into pieces of L + 1 that share one token; what remains is
           packed whole into bins by best-fit-decreasing (Ding et al. 2024, arXiv:2404.10830); sample i is
           bin i, the rest of it padding

The plan of the bins is made for `GROUP` shards at a time, from counts of lengths alone:

    length histograms -> (size, count) -> classes of equal bins: (bins, [(size, how many, first rank)])
    bin -> its class -> (size, rank) of its items -> a run of equal documents of a shard -> document

so a bin's documents are found without a list of bins or of documents. What is kept is the number of bins
before each group, 8 bytes a group.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bloomery.shards.dataset import Stream
from bloomery.shards.format import DamagedError
from bloomery.shards.side import Side

GROUP = 8
"""Shards that are packed together."""
OPEN_GROUPS = 32
"""Plans that are kept."""

Indices = npt.NDArray[np.int64]
OpenSide = Callable[[int], Side]
"""Opens the side file of the shard of a number."""


class UnreadableError(DamagedError):
    """A side file is lost, and with it the plan of its group: tokens [start, stop) of the stream."""

    def __init__(self, cause: DamagedError, start: int, stop: int) -> None:
        super().__init__(cause.path, cause.what.removeprefix(f"{cause.path}: "))
        self.start, self.stop = start, stop


class Segments(NamedTuple):
    """Runs of a stream's tokens that make up samples, in the order of (row, at)."""

    row: Indices
    """Which of the asked samples: [segments]."""
    at: Indices
    """Where in the sample the run begins: [segments]."""
    start: Indices
    """Position in the stream: [segments]."""
    size: Indices
    """Tokens: [segments]."""


class Cut(Protocol):
    """A stream cut into samples."""

    @property
    def samples(self) -> int:
        """Samples of an epoch."""

    def segments(self, samples: Indices) -> Segments:
        """What the samples hold."""

    def holding(self, start: int, stop: int) -> Indices:
        """Samples that hold any of the tokens [start, stop) of the stream, ascending."""

    def shards(self, first: int, count: int) -> range:
        """Shards that the samples [first, first + count) are read from."""


@dataclass(frozen=True)
class Concat:
    """Concat-and-chunk."""

    stream: Stream
    length: int

    @property
    def samples(self) -> int:
        """Samples of an epoch; a shorter tail is not used."""
        return max(0, (self.stream.tokens - 1) // self.length)

    def segments(self, samples: Indices) -> Segments:
        """One run a sample."""
        count = len(samples)
        return Segments(
            np.arange(count),
            np.zeros(count, np.int64),
            samples * self.length,
            np.full(count, self.length + 1),
        )

    def holding(self, start: int, stop: int) -> Indices:
        """Neighbours share a token, so one token may be in two samples."""
        first = max(0, -((self.length - start) // self.length))
        return np.arange(first, min((stop - 1) // self.length + 1, self.samples))

    def shards(self, first: int, count: int) -> range:
        """Those of the tokens."""
        ends = np.array([first, first + count]) * self.length
        low, high = self.stream.shards_at(ends).tolist()
        return range(low, high + 1)


class Plan(NamedTuple):
    """Bins of a group, by class."""

    bins: Indices
    """Bins before each class, and of all: [classes + 1]."""
    first: Indices
    """First entry of each class, and their number: [classes + 1]."""
    size: Indices
    """Of an entry's items: [entries]."""
    many: Indices
    """Items of that size in each bin of the class: [entries]."""
    rank: Indices
    """Rank, among items of that size, of the first bin's first: [entries]."""


def best_fit(sizes: list[int], counts: list[int], capacity: int, most: int) -> Plan:
    """Best-fit-decreasing of `counts` items of each of `sizes`.

    Each item goes into the bin with the least room that takes it. Bins with equal contents are one class, and
    a bin that takes one item of a size has the least room for the next, too; so a size costs a few
    operations, however many items there are.

    Args:
        sizes: distinct, ascending, 1 .. capacity.
        counts: of each, at least 1.
        capacity: of a bin.
        most: items that a bin may hold.
    """
    classes: list[tuple[int, list[tuple[int, int, int]]]] = []
    by_room: dict[int, list[tuple[int, int, list[tuple[int, int, int]]]]] = {}
    rooms = 0  # bit r: some open class has room r

    def keep(bins: int, room: int, items: int, entries: list[tuple[int, int, int]]) -> None:
        nonlocal rooms
        if bins and (not room or items == most):
            classes.append((bins, entries))
        elif bins:
            by_room.setdefault(room, []).append((bins, items, entries))
            rooms |= 1 << room

    for size, count in zip(reversed(sizes), reversed(counts), strict=True):
        left = count
        while left:
            fitting = rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                bins, items, entries = by_room[room].pop()
                if not by_room[room]:
                    rooms ^= 1 << room
            else:
                bins, room, items, entries = left, capacity, 0, []
            many = min(room // size, most - items)
            full = min(bins, left // many)
            rest = left % many if full < bins else 0
            used, rank = full + (rest > 0), count - left
            keep(full, room - many * size, items + many, [*entries, (size, many, rank)])
            if rest:
                shifted = [(s, m, r + full * m) for s, m, r in entries]
                keep(1, room - rest * size, items + rest, [*shifted, (size, rest, rank + full * many)])
            if used < bins and items:  # a class of empty bins was only lent
                keep(bins - used, room, items, [(s, m, r + used * m) for s, m, r in entries])
            left -= full * many + rest
    for room in sorted(by_room):
        classes += [(bins, entries) for bins, _, entries in by_room[room]]
    flat = np.array([entry for _, entries in classes for entry in entries], np.int64).reshape(-1, 3)
    return Plan(
        _before([bins for bins, _ in classes]),
        _before([len(entries) for _, entries in classes]),
        *flat.T.copy(),
    )


def _before(counts: list[int] | npt.NDArray[np.integer]) -> Indices:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64))])


class Runs(NamedTuple):
    """Items in the order of (size, document's length, shard): runs of a shard's documents of one length."""

    before: Indices
    """Items before each run, and of all: [runs + 1]."""
    size: Indices
    """[runs]"""
    shard: Indices
    """[runs]"""
    document: Indices
    """Place of the run's first document in the shard's `by_length`: [runs]."""
    pieces: Indices
    """Items of this size that one document has: [runs]."""
    piece: Indices
    """Number of the first of them in its document: [runs]."""


def item_runs(histograms: list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]], length: int) -> Runs:
    """The items of shards with these (lengths, counts): a document of n tokens has (n - 1) // length pieces
    of length + 1 tokens, and one of what remains."""
    columns: list[Indices] = []
    for shard, (lengths, counts) in enumerate(histograms):
        n, c = lengths.astype(np.int64), counts.astype(np.int64)
        place, (full, rest) = _before(c)[:-1], np.divmod(n - 1, length)
        for chosen, size, pieces, piece in (
            (full > 0, np.full(len(n), length + 1), full, np.zeros_like(n)),
            ((rest > 0) | (full == 0), rest + 1, np.ones_like(n), full),
        ):
            rows = np.stack([size, n, np.full(len(n), shard), place, pieces, piece, c * pieces])
            columns.append(rows[:, chosen])
    found = np.concatenate(columns, axis=1)
    size, _, shard, place, pieces, piece, items = found[:, np.lexsort(found[2::-1])]
    return Runs(_before(items), size, shard, place, pieces, piece)


@dataclass(frozen=True)
class Packing:
    """The bins of one group of shards."""

    sides: list[Side]
    length: int
    runs: Runs
    plan: Plan
    sizes: Indices
    """Items before those of each size: [length + 3]."""

    @classmethod
    def of(cls, sides: list[Side], length: int, most: int) -> Packing:
        """Plans a group from the length histograms of its side files."""
        runs = item_runs([(side.lengths, side.counts) for side in sides], length)
        items = np.bincount(runs.size, np.diff(runs.before), length + 2).astype(np.int64)
        held = np.flatnonzero(items)
        plan = best_fit(held.tolist(), items[held].tolist(), length + 1, most)
        return cls(sides, length, runs, plan, _before(items))

    @property
    def bins(self) -> int:
        """Bins of the group."""
        return int(self.plan.bins[-1])

    def items(self, bins: Indices) -> tuple[Indices, Indices]:
        """(row in `bins`, item) of everything that the bins hold, the largest items of a bin first."""
        plan = self.plan
        kind = np.searchsorted(plan.bins, bins, "right") - 1
        row, entry = ragged(plan.first[kind], plan.first[kind + 1] - plan.first[kind])
        rank = self.sizes[plan.size[entry]] + plan.rank[entry]
        rank += (bins - plan.bins[kind])[row] * plan.many[entry]
        inner, item = ragged(rank, plan.many[entry])
        return row[inner], item

    def locate(self, items: Indices) -> tuple[Indices, Indices, Indices]:
        """(shard, first token in it, tokens) of items."""
        runs = self.runs
        run = np.searchsorted(runs.before, items, "right") - 1
        nth, piece = np.divmod(items - runs.before[run], runs.pieces[run])
        start = np.empty(len(items), np.int64)
        for shard in np.unique(runs.shard[run]).tolist():
            mine, side = runs.shard[run] == shard, self.sides[shard]
            documents = side.by_length[runs.document[run[mine]] + nth[mine]]
            start[mine] = side.starts[documents]
        return runs.shard[run], start + (runs.piece[run] + piece) * self.length, runs.size[run]

    def bins_of(self, shard: int, documents: Indices) -> Indices:
        """Bins that hold any piece of the documents (numbers in the shard), ascending."""
        side, runs, plan = self.sides[shard], self.runs, self.plan
        lengths = (side.starts[documents + 1] - side.starts[documents]).astype(np.uint32)
        places, kind = _before(side.counts), np.searchsorted(side.lengths, lengths)
        spans = zip(places[kind].tolist(), places[kind + 1].tolist(), documents.tolist(), strict=True)
        nth: Indices = np.array([np.searchsorted(side.by_length[a:b], np.uint32(d)) for a, b, d in spans])
        mine = np.flatnonzero(runs.shard == shard)
        row, run = np.nonzero(places[kind][:, None] == runs.document[mine])  # its pieces, and what remains
        run = mine[run]
        _, item = ragged(runs.before[run] + nth[row] * runs.pieces[run], runs.pieces[run])
        size = np.searchsorted(self.sizes, item, "right") - 1
        rank = item - self.sizes[size]
        order = np.lexsort((plan.rank, plan.size))  # an entry takes consecutive ranks of its size
        keys = plan.size[order] * (self.runs.before[-1] + 1) + plan.rank[order]
        entry = order[np.searchsorted(keys, size * (self.runs.before[-1] + 1) + rank, "right") - 1]
        kind = np.searchsorted(plan.first, entry, "right") - 1
        return np.unique(plan.bins[kind] + (rank - plan.rank[entry]) // plan.many[entry])


def ragged(first: Indices, count: Indices) -> tuple[Indices, Indices]:
    """(row, value) of the ranges [first, first + count), one after the other."""
    row = np.repeat(np.arange(len(first)), count)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)


@dataclass(frozen=True)
class BestFit:
    """The bins of a stream, group after group."""

    stream: Stream
    length: int
    most: int
    """Items that a bin may hold."""
    before: npt.NDArray[np.uint64]
    """Bins before each group, and of all: [groups + 1]."""
    opened: OpenSide
    plans: OrderedDict[int, Packing] = field(default_factory=OrderedDict)

    @classmethod
    def make(cls, stream: Stream, length: int, most: int, opened: OpenSide, path: Path) -> BestFit:
        """Opens the bins; counts those of each group if the table at `path` is not there yet."""
        if not path.exists():
            groups = range(-(-len(stream.table) // GROUP))
            counts = [_group(stream, group, length, most, opened).bins for group in groups]
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
            temporary.write_bytes(_before(counts).astype("<u8").tobytes())
            os.replace(temporary, path)
        return cls(stream, length, most, np.memmap(path, "<u8", mode="r").view(np.ndarray), opened)

    @property
    def samples(self) -> int:
        """Bins of an epoch."""
        return int(self.before[-1])

    def segments(self, samples: Indices) -> Segments:
        """A run an item."""
        groups = np.searchsorted(self.before, samples.astype(np.uint64), "right") - 1
        found = []
        for group in np.unique(groups).tolist():
            rows, packing = np.flatnonzero(groups == group), self._packing(group)
            row, item = packing.items(samples[rows] - int(self.before[group]))
            shard, start, size = packing.locate(item)
            base = self.stream.table.tokens_before[group * GROUP + shard].astype(np.int64)
            found.append(np.stack([rows[row], base + start, size]))
        row, start, size = np.concatenate(found, axis=1) if found else np.zeros((3, 0), np.int64)
        order = np.argsort(row, kind="stable")
        row, start, size = row[order], start[order], size[order]
        first = np.searchsorted(row, row)
        return Segments(row, (np.cumsum(size) - size) - (np.cumsum(size) - size)[first], start, size)

    def holding(self, start: int, stop: int) -> Indices:
        """The bins of the documents that hold any of the tokens."""
        first, last = self.stream.shards_at(np.array([start, stop - 1])).tolist()
        found = []
        for group in range(first // GROUP, last // GROUP + 1):
            low, high = group * GROUP, min((group + 1) * GROUP, len(self.stream.table))
            bins = np.arange(int(self.before[group]), int(self.before[group + 1]))
            if not (start <= self.stream.start(low) and self.stream.start(high) <= stop):
                packing, touched = self._packing(group), [bins[:0]]
                for shard in range(max(first, low), min(last + 1, high)):
                    at, side = self.stream.start(shard), packing.sides[shard - low]
                    edges = np.clip([start - at, stop - at - 1], 0, side.tokens - 1).astype(np.uint32)
                    documents = np.searchsorted(side.starts, edges, "right") - 1
                    touched.append(
                        bins[packing.bins_of(shard - low, np.arange(documents[0], documents[1] + 1))]
                    )
                bins = np.unique(np.concatenate(touched))
            found.append(bins)
        return np.concatenate(found)

    def shards(self, first: int, count: int) -> range:
        """Those of the groups."""
        ends = np.array([first, first + count - 1], np.uint64)
        low, high = (np.searchsorted(self.before, ends, "right") - 1).tolist()
        return range(low * GROUP, min((high + 1) * GROUP, len(self.stream.table)))

    def _packing(self, group: int) -> Packing:
        if group not in self.plans:
            self.plans[group] = _group(self.stream, group, self.length, self.most, self.opened)
            if len(self.plans) > OPEN_GROUPS:
                self.plans.popitem(last=False)
        self.plans.move_to_end(group)
        return self.plans[group]


def _group(stream: Stream, group: int, length: int, most: int, opened: OpenSide) -> Packing:
    numbers = range(group * GROUP, min((group + 1) * GROUP, len(stream.table)))
    try:
        return Packing.of([opened(number) for number in numbers], length, most)
    except DamagedError as error:
        raise UnreadableError(error, stream.start(numbers.start), stream.start(numbers.stop)) from error
