"""Which keys a shard holds: an exact histogram of tokens over ranges of the key, cut into even shards.

    keys of a stream   |....|..|......|.|...| ...   2^20 ranges, each with its tokens and longest document
    too coarse?                |.|..|.|             counted finer, until no range but a single key's is
    cut                ^---------^--------^         even, by bloomery.shards.bounds

Keys are signed here, as Spark has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.shards.bounds import spread
from bloomery.shards.dataset import Policy
from bloomery.shards.keys import BUCKET_BITS
from bloomery.shards.write import shards_of
from spark_jobs.engine import functions

TOLERANCE = 0.02
"""By how much of its size a shard may differ from another, if the longest document is smaller than that."""
FINER = 4
"""Bits by which ranges that are too coarse are split in a round."""
FEW = 1 << 20
"""Documents of which each has a range of its own in the driver."""

Stream = tuple[str, str]
"""(split, source)."""


class Plan(NamedTuple):
    """The shards of a stream, numbered through all streams."""

    first: int
    """Number of the first one."""
    keys: npt.NDArray[np.int64]
    """Least key that each may hold: [shards]."""


Plans = Mapping[Stream, Plan]


class Ranges(NamedTuple):
    """Ranges of the key in order, each with what a stream holds of it; each column is [ranges]."""

    first: npt.NDArray[np.int64]
    """Least key of the range."""
    tokens: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    largest: npt.NDArray[np.int64]
    """Tokens of the longest document."""

    def coarse(self, policy: Policy, target_bytes: int) -> npt.NDArray[np.bool_]:
        """Which hold so much that a cut beside them could make shards uneven: [ranges]."""
        total = int(self.tokens.sum())
        shards = shards_of(total, policy.dtype, target_bytes)
        most = max(int(self.largest.max()), TOLERANCE * total / shards)
        return (self.tokens > most) & (self.documents > 1) & (shards > 1)


def histogram(spark: Any, tokens: Any, policy: Policy, target_bytes: int) -> dict[Stream, Ranges]:
    """Exact counts over 2^20 ranges of the key, finer where one range is too coarse for equal shards."""
    shift = 64 - BUCKET_BITS
    found = _counted(tokens, shift)
    while shift:
        coarse = {stream: ranges.coarse(policy, target_bytes) for stream, ranges in found.items()}
        rows = [(*stream, int(first)) for stream in found for first in found[stream].first[coarse[stream]]]
        if not rows:
            break
        held = sum(int(found[stream].documents[coarse[stream]].sum()) for stream in found)
        wanted = spark.createDataFrame(rows, "split string, source string, first bigint")
        finer = 0 if held <= FEW else max(0, shift - FINER)
        F = functions()  # noqa: N806
        within = tokens.withColumn("first", _range(shift)).join(F.broadcast(wanted), wanted.columns)
        for stream, ranges in _counted(within, finer).items():
            left = (column[~coarse[stream]] for column in found[stream])
            columns = [np.concatenate(pair) for pair in zip(left, ranges, strict=True)]
            order = np.argsort(columns[0])
            found[stream] = Ranges(*(column[order] for column in columns))
        shift = finer
    return found


def _range(shift: int) -> Any:
    """The least key that shares all but its last `shift` bits with `key`."""
    F = functions()  # noqa: N806
    return F.shiftleft(F.shiftright("key", shift), shift)


def _counted(tokens: Any, shift: int) -> dict[Stream, Ranges]:
    F = functions()  # noqa: N806
    counted = tokens.groupBy("split", "source", _range(shift).alias("first")).agg(
        F.sum("count").alias("tokens"), F.count("*").alias("documents"), F.max("count").alias("largest")
    )
    table = counted.toArrow().sort_by([(name, "ascending") for name in ("split", "source", "first")])
    streams = list(zip(table["split"].to_pylist(), table["source"].to_pylist(), strict=True))
    columns = [table[name].to_numpy() for name in Ranges._fields]
    found, start = {}, 0
    for stream, rows in groupby(streams):
        stop = start + sum(1 for _ in rows)
        found[stream] = Ranges(*(column[start:stop] for column in columns))
        start = stop
    return found


def plan(found: Mapping[Stream, Ranges], policy: Policy, target_bytes: int) -> dict[Stream, Plan]:
    """The shards that a histogram asks for, of about `target_bytes` each."""
    plans, number = {}, 0
    for stream, ranges in sorted(found.items()):
        wanted = shards_of(int(ranges.tokens.sum()), policy.dtype, target_bytes)
        plans[stream] = Plan(number, ranges.first[spread(ranges.tokens, wanted)])
        number += len(plans[stream].keys)
    return plans


def stream_of(plans: Plans, number: int) -> Stream:
    """The stream of a shard."""
    return next(stream for stream, plan in plans.items() if 0 <= number - plan.first < len(plan.keys))
