"""How far two profiles are apart: no p-values, which at this many documents are all 0.

PSI, the population stability index: sum over bins of (p - q) ln(p / q). Credit scoring's rule of thumb: below
0.1 the same population, from 0.25 on another. For two samples of one population it is distributed as (1/n +
1/m) chi-squared with bins - 1 degrees of freedom (Yurdakul 2018), so of small snapshots a part is chance, and
is taken off. The Jensen-Shannon divergence of two near mixes is PSI / 8 nats, and is treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_jobs.profiling import CorpusProfile

GROUPS = 10
"""Groups that bins are joined to, each of about as many documents of the published snapshot."""
TAIL = 10.0
"""Chance explains what one sound snapshot in exp(TAIL), some 22,000, exceeds."""
Histogram = Mapping[int, int]
Mix = Mapping[str, int]


class Drift(NamedTuple):
    """How far a snapshot is from the last published one; each figure with what it is greatest for."""

    documents: float
    """Relative change."""
    bytes: float
    psi: Mapping[str, float]
    """By numeric column."""
    sources: float
    """Jensen-Shannon divergence, bits."""
    languages: float
    rules: float
    nulls: Mapping[str, float]
    """Change of the fraction of nulls by column, less what chance explains."""
    vanished: Sequence[str]
    """Sources that have no document any more."""


def drift(now: CorpusProfile, before: CorpusProfile) -> Drift:
    """How far `now` is from `before`."""
    columns = sorted(now.histograms.keys() | before.histograms.keys())
    sources = [
        {name: origin.documents for name, origin in profile.sources.items()} for profile in (now, before)
    ]
    return Drift(
        documents=change(now.documents, before.documents),
        bytes=change(now.size, before.size),
        psi={c: psi(dict(now.histograms.get(c, ())), dict(before.histograms.get(c, ()))) for c in columns},
        sources=divergence(*sources),
        languages=divergence(now.languages, before.languages),
        rules=divergence(fates(now), fates(before)),
        nulls={
            name: moved(count, survivors(now), before.nulls.get(name, 0), survivors(before))
            for name, count in now.nulls.items()
        },
        vanished=[name for name, count in sources[1].items() if count and not sources[0].get(name)],
    )


def fates(profile: CorpusProfile) -> Mix:
    """Records by the rule that took them, or by their status."""
    found: dict[str, int] = {}
    for fate in profile.fates:
        found[fate.rule or fate.status] = found.get(fate.rule or fate.status, 0) + fate.records
    return found


def survivors(profile: CorpusProfile) -> int:
    """Survivors by the ledger."""
    return sum(profile.splits.values())


def moved(some: int, whole: int, before: int, whole_before: int) -> float:
    """Change of a fraction, less what chance explains: sqrt(2 TAIL) standard deviations."""
    if not whole or not whole_before:
        return 0.0
    pooled = (some + before) / (whole + whole_before)
    chance = math.sqrt(2 * TAIL * pooled * (1 - pooled) * (1 / whole + 1 / whole_before))
    return max(0.0, abs(some / whole - before / whole_before) - chance)


def change(now: int, before: int) -> float:
    """Relative change; infinite from nothing."""
    return abs(now - before) / before if before else (math.inf if now else 0.0)


def psi(now: Histogram, before: Histogram) -> float:
    """Population stability index of two histograms over the same bins, less what chance explains.

    A column that has no value in one of them has no index of its own: that is for the nulls to tell.
    """
    if not now or not before:
        return 0.0
    found = np.array(sorted({*now, *before}))
    counts = np.array([[histogram.get(int(bin_), 0) for bin_ in found] for histogram in (now, before)])
    grouped = np.array([counts[:, start:end].sum(axis=1) for start, end in pairwise(_groups(counts[1]))]).T
    p, q = _fractions(grouped)
    return float(max(0.0, np.sum((p - q) * np.log(p / q)) - _chance(grouped)))


def divergence(now: Mix, before: Mix) -> float:
    """Jensen-Shannon divergence of two mixes in bits, less what chance explains."""
    names = sorted(now.keys() | before.keys())
    counts = np.array([[mix.get(name, 0) for name in names] for mix in (now, before)])
    if not counts.sum(axis=1).all():
        return float(bool(counts.sum()))
    p, q = counts / counts.sum(axis=1, keepdims=True)
    middle = (p + q) / 2
    distance = (_relative(p, middle) + _relative(q, middle)) / 2
    return float(max(0.0, distance - _chance(counts) / (8 * math.log(2))))


def _groups(counts: npt.NDArray[np.int64]) -> list[int]:
    """First bin of each group, then the end: a group ends as soon as it holds its part of all documents."""
    part, held, starts = counts.sum() / GROUPS, 0, [0]
    for place, count in enumerate(counts.tolist()):
        held += count
        if held >= part and place + 1 < len(counts):
            starts.append(place + 1)
            held = 0
    return [*starts, len(counts)]


def _fractions(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Fractions of each row, none of them 0: half a document is added to each bin (Jeffreys' prior)."""
    smoothed = counts + 0.5
    fractions: npt.NDArray[np.float64] = smoothed / smoothed.sum(axis=1, keepdims=True)
    return fractions


def _chance(counts: npt.NDArray[np.int64]) -> float:
    """What PSI comes to by chance for two samples of one population: chi-squared's upper tail is below
    freedom + 2 sqrt(freedom TAIL) + 2 TAIL (Laurent and Massart 2000, lemma 1)."""
    freedom = counts.shape[1] - 1
    tail = freedom + 2 * math.sqrt(freedom * TAIL) + 2 * TAIL
    return float((1 / counts.sum(axis=1)).sum() * tail)


def _relative(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> float:
    """Kullback-Leibler divergence in bits."""
    there = p > 0
    return float(np.sum(p[there] * np.log2(p[there] / q[there])))
