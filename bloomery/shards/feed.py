"""Which samples a run reads: a pure function of (dataset, config, overlay, step); its state is the step.

    step -> its samples [first, first + batch) of the run      ramp of the batch
         -> source, position in the source's order             mixture
         -> sample of the source's stream                      order, and the overlay's quarantine

and back: sample of a stream -> positions, one an epoch -> samples of the run -> steps that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.shards.format import ShardError
from bloomery.shards.order import Order
from bloomery.shards.overlay import Damage, Overlay, Quarantine
from bloomery.shards.packing import Cut
from bloomery.shards.schedule import Mixture, Ramp

Indices = npt.NDArray[np.int64]


class Reading(NamedTuple):
    """Some samples of a run, in its order."""

    source: Indices
    """Number of each one's source: [N]."""
    position: Indices
    """In the source's order; after quarantine that of the sample that stands in: [N]."""
    sample: Indices
    """Of the source's stream: [N]."""


@dataclass(frozen=True)
class Source:
    """A source as a run reads it."""

    name: str
    cut: Cut
    order: Order


@dataclass(frozen=True)
class Feed:
    """The samples of a run."""

    sources: Sequence[Source]
    mixture: Mixture
    batch: Ramp
    """Samples a step."""
    samples: int
    """Of the whole run; its last step may be short."""
    overlay: Overlay

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.batch.step(self.samples - 1) + 1

    def span(self, step: int) -> tuple[int, int]:
        """First sample of a step, and how many it has."""
        first = min(self.batch.before(step), self.samples)
        return first, min(self.batch.before(step + 1), self.samples) - first

    def read(self, run: Indices) -> Reading:
        """What these samples of the run are: [N]."""
        sources, positions = self.mixture.read(run)
        samples = np.empty(len(run), np.int64)
        for number in np.unique(sources).tolist():
            mine = np.flatnonzero(sources == number)
            for since, lost, instead in self._detours[number]:
                positions[mine] = _swap(positions[mine], run[mine] >= since, lost, instead)
            samples[mine] = self.sources[number].order.samples(positions[mine])
        return Reading(sources, positions, samples)

    def find(self, source: int, samples: Indices) -> Indices:
        """Samples of the run that read any of these samples of a source's stream, ascending."""
        order, detours = self.sources[source].order, self._detours[source]
        end = max([self._final(source), *(int(instead[-1]) + 1 for _, _, instead in detours if len(instead))])
        epochs = range(-(-end // order.length))
        positions = np.concatenate([order.positions(samples, e) for e in epochs] or [samples[:0]])
        for _, lost, instead in reversed(detours):
            positions = _swap(positions, np.ones(len(positions), bool), instead, lost)
        run = self.mixture.find(source, positions, self.samples)
        run = np.unique(run[run >= 0])
        found = self.read(run)
        return run[(found.source == source) & np.isin(found.sample, samples)]

    def _final(self, source: int) -> int:
        """Samples of a source in the whole run."""
        return int(self.mixture.counts(np.array([self.samples]))[0, source])

    @cached_property
    def _detours(self) -> list[list[tuple[int, Indices, Indices]]]:
        """Per source, in the overlay's order: (first sample of the run, lost positions, those instead)."""
        found: list[list[tuple[int, Indices, Indices]]] = [[] for _ in self.sources]
        for number, source in enumerate(self.sources):
            bad = np.zeros(0, np.int64)
            for entry in (entry for entry in self.overlay.quarantined if entry.source == source.name):
                lost_samples = source.cut.holding(entry.start, entry.stop)
                bad = np.union1d(bad, lost_samples)
                since = self.span(entry.since)[0]
                low = int(self.mixture.counts(np.array([since]))[0, number])
                epochs = range(low // source.order.length, -(-entry.reserve // source.order.length))
                lost = np.sort(
                    np.concatenate([source.order.positions(lost_samples, e) for e in epochs] or [bad[:0]])
                )
                lost = lost[(lost >= low) & (lost < entry.reserve)]
                found[number].append((since, lost, _good(source.order, entry.reserve, len(lost), bad)))
        return found

    def around(self, damages: Sequence[Damage], step: int) -> Feed:
        """The feed that reads around new damage from `step` on."""
        feed = self
        for damage in damages:
            number = next(n for n, source in enumerate(self.sources) if source.name == damage.source)
            used = [int(instead[-1]) + 1 for _, _, instead in feed._detours[number] if len(instead)]
            entry = Quarantine(
                source=damage.source,
                start=damage.start,
                stop=damage.stop,
                since=step,
                reserve=max([self._final(number), *used]),
            )
            overlay = feed.overlay.model_copy(update={"quarantined": (*feed.overlay.quarantined, entry)})
            feed = replace(feed, overlay=overlay)
        return feed


def _swap(positions: Indices, after: npt.NDArray[np.bool_], lost: Indices, instead: Indices) -> Indices:
    at = np.searchsorted(lost, positions)
    hit = after & (at < len(lost))
    hit[hit] = lost[at[hit]] == positions[hit]
    return np.where(hit, instead[np.where(hit, at, 0)], positions) if hit.any() else positions


def _good(order: Order, first: int, count: int, bad: Indices) -> Indices:
    """The first `count` positions from `first` on whose sample is not bad."""
    if count and len(bad) >= order.length:
        raise ShardError(
            f"nothing of source {order.stream} is left: all its {order.length:,} samples are damaged",
            "bring its shards back from a copy, or make them again; the run resumes",
        )
    found, width = np.zeros(0, np.int64), max(64, 2 * count)
    while len(found) < count:
        positions = np.arange(first, first + width)
        found = np.append(found, positions[~np.isin(order.samples(positions), bad)])
        first += width
    return found[:count]
