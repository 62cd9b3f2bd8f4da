"""Samples of a stream as tokens: gathered from mapped shards, every MiB checked when it is first touched.

    samples -> runs of the stream's tokens          packing
            -> the shards that hold them            opened when first asked for, a few kept open
            -> CRC32C of each block, once           a wrong one: fetch the shard again; still wrong: damage
            -> tokens, where segments begin, which targets are none

Where documents begin comes from the side file's index, never from looking for separators. A batch with damage
has no tokens: the caller reads around it first.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bloomery.shards.dataset import Stream
from bloomery.shards.format import DamagedError
from bloomery.shards.order import groups
from bloomery.shards.overlay import Damage, Tombstone
from bloomery.shards.packing import Cut, Segments, UnreadableError, ragged
from bloomery.shards.shard import Shard, open_side
from bloomery.shards.side import BLOCK, Side

OPEN = 128
"""Shards of a stream that are kept open."""

Indices = npt.NDArray[np.int64]


class Fetch(Protocol):
    """Brings shards to the folder of their stream."""

    def shard(self, stream: Stream, number: int, again: bool) -> None:
        """Has the files of a shard there; `again`: those that are there are damaged.

        Raises:
            DamagedError: no copy holds what the table says.
        """

    def ahead(self, stream: Stream, numbers: Iterable[int]) -> None:
        """Begins to fetch shards that are read soon."""


class InPlace:
    """A dataset whose files are all where they belong; there is no other copy."""

    def shard(self, stream: Stream, number: int, again: bool) -> None:
        """Nothing to do."""

    def ahead(self, stream: Stream, numbers: Iterable[int]) -> None:
        """Nothing to do."""


class Runs(NamedTuple):
    """Runs of tokens [begin, end) that stand at a place of the rows, row * (L + 1) + place."""

    place: Indices
    begin: Indices
    end: Indices
    tokens: npt.NDArray[Any]


@dataclass
class Rows:
    """Samples of L + 1 tokens: [N, L + 1]."""

    samples: int
    width: int
    """L + 1."""
    dtype: np.dtype[Any]
    """Of the shards."""
    runs: list[Runs] = field(default_factory=list)
    """What they hold; a run covers what those before it have there."""
    begins: list[Indices] = field(default_factory=list)
    """Where documents, pieces and padding begin, row * (L + 1) + place, in no order."""
    masked: list[Indices] = field(default_factory=list)
    """Tokens that are no targets, row * (L + 1) + place, in no order."""

    def filled(self, counts: Sequence[int]) -> Iterator[npt.NDArray[Any]]:
        """The tokens, so many rows at a time, [count, L + 1]: each overwrites those before. They are gathered
        when they are asked for, so what reads them then finds them in the processor's cache."""
        columns = zip(*(run[:3] for run in self.runs), strict=True)
        place, begin, end = (np.concatenate(column) for column in columns) if self.runs else [_NONE] * 3
        source = np.repeat(np.arange(len(self.runs)), [len(run.place) for run in self.runs])
        order = np.argsort(place, kind="stable")
        edges = np.cumsum([0, *counts]) * self.width
        bounds = np.searchsorted(place[order], edges)
        runs = zip(*(column[order].tolist() for column in (place, begin, end, source)), strict=True)
        scratch = np.empty((max(counts, default=0), self.width), self.dtype)
        flat, sources = scratch.reshape(-1), [run.tokens for run in self.runs]
        for count, base, held in zip(counts, edges.tolist(), np.diff(bounds).tolist(), strict=False):
            for at, low, high, number in islice(runs, held):
                flat[at - base : at - base + high - low] = sources[number][low:high]
            yield scratch[:count]


_NONE = np.zeros(0, np.int64)


class Shards:
    """The shards of a stream that are open."""

    def __init__(self, stream: Stream, fetch: Fetch) -> None:
        self.stream, self.fetch = stream, fetch
        self._open: OrderedDict[int, Shard] = OrderedDict()

    def open(self, number: int) -> Shard:
        """A shard, fetched and opened if it is not open yet; from a copy fetched again if it is damaged.

        Raises:
            DamagedError: so is that copy.
        """
        if number not in self._open:
            self.fetch.shard(self.stream, number, again=False)
            try:
                shard = self.stream.shard(number)
            except DamagedError:
                self.fetch.shard(self.stream, number, again=True)
                shard = self.stream.shard(number)
            self._open[number] = shard
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return self._open[number]

    def side(self, number: int) -> Side:
        """The side file alone: a bin's plan is not lost with a shard's tokens.

        Raises:
            DamagedError: no copy of it is whole.
        """
        if number in self._open:
            return self._open[number].side
        info = self.stream.table[number]
        for again in (False, True):
            with contextlib.suppress(DamagedError):  # of another of its files
                self.fetch.shard(self.stream, number, again=again)
            with contextlib.suppress(DamagedError):
                return open_side(self.stream.folder, info)
        return open_side(self.stream.folder, info)

    def again(self, number: int) -> Shard:
        """A shard from a copy that is fetched again."""
        self._open.pop(number, None)
        self.fetch.shard(self.stream, number, again=True)
        return self.open(number)


class Reader:
    """Reads samples of one stream."""

    def __init__(self, shards: Shards, cut: Cut, eos_id: int) -> None:
        self.shards, self.stream, self.cut, self.eos_id = shards, shards.stream, cut, eos_id
        self._buried = np.zeros((0, 2), np.int64)

    def ahead(self, first: int, count: int) -> None:
        """Begins to fetch the shards of the samples [first, first + count)."""
        self.shards.fetch.ahead(self.stream, self.cut.shards(first, count))

    def bury(self, tombstones: list[Tombstone]) -> None:
        """Leaves out these documents of the stream, and no others."""
        ranges = sorted({(stone.start, stone.stop) for stone in tombstones})
        self._buried = np.array(ranges, np.int64).reshape(-1, 2)

    def read(self, samples: Indices, rows: Indices, out: Rows) -> list[Damage]:
        """Reads samples into rows of `out`; returns the damage that was met: nothing of `out` is then of use.

        Args:
            samples: [N].
            rows: [N].
            out: what a sample does not fill of its row, separators do.
        """
        try:
            segments = self.cut.segments(samples)
        except UnreadableError as error:
            return [Damage(source=self.stream.source, start=error.start, stop=error.stop, what=error.what)]
        row, at, start, size = self.within_shards(segments)
        place, damage = rows[row] * out.width + at, list[Damage]()
        out.begins.append(place)
        for number, mine in groups(self.stream.shards_at(start)):
            begin, to = start[mine] - self.stream.start(number), place[mine]
            end = begin + size[mine]
            shard = self._verified(number, begin, end, damage)
            if shard is None or damage:
                continue
            out.runs.append(Runs(to, begin, end, shard.tokens))
            starts = shard.side.starts
            edges = np.concatenate([begin, end - 1]).astype(np.uint32)  # the column's type
            first, last = np.searchsorted(starts, edges, "right").reshape(2, -1)
            run, document = ragged(first, last - first)
            out.begins.append(starts[document] + (to - begin)[run])
            out.masked.append(to[(at[mine] > 0) & (starts[first - 1] != begin)])
        if not damage:
            self._pad(segments, rows, out)
            self._mask_buried(start, size, place, out)
        return damage

    def within_shards(self, segments: Segments) -> Segments:
        """The runs, cut where one shard ends and the next begins."""
        row, at, start, size = segments
        while True:
            first, last = self.stream.shards_at(start), self.stream.shards_at(start + size - 1)
            over = np.flatnonzero(first != last)
            if not len(over):
                return Segments(row, at, start, size)
            ends = np.array([self.stream.start(number + 1) for number in first[over].tolist()])
            here = ends - start[over]
            rest = Segments(row[over], at[over] + here, ends, size[over] - here)
            size = size.copy()
            size[over] = here
            row, at, start, size = (
                np.insert(a, over + 1, b) for a, b in zip((row, at, start, size), rest, strict=True)
            )

    def _verified(self, number: int, begin: Indices, end: Indices, damage: list[Damage]) -> Shard | None:
        """The shard, its blocks that hold these ranges checked; None with damage noted."""
        try:
            shard = self.shards.open(number)
        except DamagedError as error:
            damage.append(self._lost(number, error))
            return None
        try:
            shard.check_sizes()
            shard.verify(begin, end)
        except DamagedError:
            try:
                shard = self.shards.again(number)
                shard.verify(begin, end)
            except DamagedError as error:
                damage += self._blocks(number, error)
                return None
        return shard

    def _pad(self, segments: Segments, rows: Indices, out: Rows) -> None:
        ends = segments.at + segments.size
        last = np.flatnonzero(np.append(segments.row[1:] != segments.row[:-1], True))
        short = last[ends[last] < out.width]
        if len(short):
            begins = rows[segments.row[short]] * out.width + ends[short]
            self._separate(begins, out.width - ends[short], out)
            out.begins.append(begins)

    def _separate(self, places: Indices, sizes: Indices, out: Rows) -> None:
        """Separators at places, which are no targets."""
        out.runs.append(Runs(places, np.zeros_like(sizes), sizes, np.full(out.width, self.eos_id, out.dtype)))
        out.masked.append(ragged(places, sizes)[1])

    def _mask_buried(self, start: Indices, size: Indices, place: Indices, out: Rows) -> None:
        if not len(self._buried):
            return
        low, high = self._buried.T
        first = np.searchsorted(high, start, "right")
        last = np.searchsorted(low, start + size, "left")
        for run in np.flatnonzero(first < last).tolist():
            for grave in range(int(first[run]), int(last[run])):
                begin = max(int(low[grave]), int(start[run])) - int(start[run])
                end = min(int(high[grave]), int(start[run] + size[run])) - int(start[run])
                self._separate(place[[run]] + begin, np.array([end - begin]), out)

    # --- damage -------------------------------------------------------------------------------------

    def _lost(self, number: int, error: DamagedError) -> Damage:
        stream = self.stream
        return Damage(
            source=stream.source, start=stream.start(number), stop=stream.start(number + 1), what=error.what
        )

    def _blocks(self, number: int, error: DamagedError) -> list[Damage]:
        """Every damaged block of a shard, to read around at once; all of one that cannot be opened."""
        try:
            shard = self.shards.open(number)
        except DamagedError as opening:
            return [self._lost(number, opening)]
        base, tokens = self.stream.start(number), BLOCK // shard.tokens.itemsize
        return [
            Damage(
                source=self.stream.source,
                start=base + block * tokens,
                stop=base + min((block + 1) * tokens, shard.info.tokens),
                what=error.what,
            )
            for block in shard.damaged()
        ]
