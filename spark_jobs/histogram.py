"""The histogram of tokens over ranges of the key, counted by Spark: what bloomery.shards.bounds cuts by."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.shards import bounds
from bloomery.shards.bounds import Ranges
from bloomery.shards.dataset import Policy
from bloomery.shards.keys import SIGN, Keys
from bloomery.shards.write import shards_of
from spark_jobs.engine import functions

Stream = tuple[str, str]
"""(split, source)."""


class Plan(NamedTuple):
    """The shards of a stream, numbered through all streams."""

    first: int
    """Number of the first one."""
    keys: Keys
    """Least key that each may hold: [shards]."""


Plans = Mapping[Stream, Plan]


def histogram(spark: Any, tokens: Any, policy: Policy, target_bytes: int) -> dict[Stream, Ranges]:
    """What each stream holds of each range of the key, finer where one is too coarse for even shards.

    Args:
        spark: session.
        tokens: split, source, key (signed, as Spark has it) and count of each document.
        policy: of the dataset.
        target_bytes: that a shard aims at.
    """
    shift = 64 - bounds.BUCKET_BITS
    found = _counted(tokens, shift)
    while shift:
        coarse = {
            stream: ranges.coarse(_wanted(ranges, policy, target_bytes)) for stream, ranges in found.items()
        }
        rows = [
            (*stream, first)
            for stream in found
            for first in signed(found[stream].first[coarse[stream]]).tolist()
        ]
        if not rows:
            break
        F = functions()  # noqa: N806
        wanted = F.broadcast(spark.createDataFrame(rows, "split string, source string, first bigint"))
        within = tokens.withColumn("first", _least(shift)).join(wanted, ["split", "source", "first"])
        shift -= bounds.FINER
        for stream, finer in _counted(within, shift).items():
            found[stream] = found[stream].refined(coarse[stream], finer)
    return found


def _wanted(ranges: Ranges, policy: Policy, target_bytes: int) -> int:
    return shards_of(int(ranges.tokens.sum()), policy.dtype, target_bytes)


def signed(keys: Keys) -> npt.NDArray[np.int64]:
    """Keys as Spark has them."""
    return (keys ^ SIGN).view(np.int64)


def unsigned(hashes: npt.NDArray[np.int64]) -> Keys:
    """Spark's hashes as keys."""
    return hashes.view(np.uint64) ^ SIGN


def _least(shift: int) -> Any:
    F = functions()  # noqa: N806
    return F.shiftleft(F.shiftright("key", shift), shift)


def _counted(tokens: Any, shift: int) -> dict[Stream, Ranges]:
    F = functions()  # noqa: N806
    counted = tokens.groupBy("split", "source", _least(shift).alias("first")).agg(
        F.sum("count").alias("tokens"), F.count("*").alias("documents"), F.max("count").alias("longest")
    )
    table = counted.toArrow().sort_by([(name, "ascending") for name in ("split", "source", "first")])
    streams = zip(table["split"].to_pylist(), table["source"].to_pylist(), strict=True)
    first, *counts = (table[name].to_numpy() for name in Ranges._fields)
    columns = (unsigned(first), *counts)
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
        plans[stream] = Plan(number, ranges.cut(_wanted(ranges, policy, target_bytes)))
        number += len(plans[stream].keys)
    return plans


def stream_of(plans: Plans, number: int) -> Stream:
    """The stream of a shard."""
    return next(stream for stream, plan in plans.items() if 0 <= number - plan.first < len(plan.keys))
