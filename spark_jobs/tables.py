"""Tables of a stage: written once by one Delta commit below the attempt's folder, then read back once.

The read-back takes the content digest and the counts in one job: what is committed is what is read, not
what was meant to be written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

from bloomery.artifacts.digests import TableDigest, batch_digest
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.errors import BloomeryError


class BalanceError(BloomeryError):
    """Rows in are not rows out: something was lost or doubled."""


@dataclass(frozen=True)
class Profile:
    """What one read of a table says of it."""

    group: tuple[str, ...]
    """The columns it is grouped by."""
    digest: TableDigest = field(default_factory=TableDigest)
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Rows per tuple of values of those columns, null as an empty string."""
    sums: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Sum of a measured column per (its name, *such a tuple)."""

    def __add__(self, other: Profile) -> Profile:
        counts, sums = self.counts.copy(), self.sums.copy()
        counts.update(other.counts)  # Counter's own + drops what adds up to zero
        sums.update(other.sums)
        return Profile(self.group, self.digest + other.digest, counts, sums)

    def counts_by(self, *columns: str) -> Counter[tuple[str, ...]]:
        """Rows per tuple of values of some of the columns."""
        return self._by(self.counts, columns)

    def sums_by(self, measure: str, *columns: str) -> Counter[tuple[str, ...]]:
        """Sum of a measured column per tuple of values of some of the columns."""
        sums = Counter({key[1:]: total for key, total in self.sums.items() if key[0] == measure})
        return self._by(sums, columns)

    def _by(self, totals: Counter[tuple[str, ...]], columns: tuple[str, ...]) -> Counter[tuple[str, ...]]:
        positions = [self.group.index(column) for column in columns]
        merged = Counter[tuple[str, ...]]()
        for key, total in totals.items():
            merged[tuple(key[position] for position in positions)] += total
        return merged


def read_table(spark: Any, artifact: Artifact) -> Any:
    """The DataFrame of an input table."""
    return spark.read.format("delta").load(artifact.spark_uri)


def scratch_table(spark: Any, context: Context, name: str, frame: Any) -> Any:
    """Computes `frame` once, as Parquet below the attempt's folder; the body removes `scratch` in the end."""
    uri = context.store.spark_uri(context.place(f"scratch/{name}"))
    frame.write.mode("error").parquet(uri)
    return spark.read.schema(frame.schema).parquet(uri)


def write_table(
    spark: Any, context: Context, name: str, frame: Any, group: tuple[str, ...], measures: tuple[str, ...]
) -> tuple[Output, Profile]:
    """Writes `frame` as output `name` and reads it back once.

    Args:
        spark: session.
        context: the attempt.
        name: output's name.
        frame: DataFrame to write.
        group: columns to count rows by.
        measures: integer columns to sum per group.

    Returns:
        The output with its digest and rows, and the profile.
    """
    uri = context.store.spark_uri(context.place(name))
    frame.write.format("delta").mode("error").save(uri)
    written = spark.read.format("delta").load(uri)
    profile = profile_of(written, group, measures)
    schema = [(field.name, field.dataType.simpleString()) for field in written.schema]
    return Output(digest=profile.digest.hexdigest(schema), rows=profile.digest.rows), profile


def profile_of(frame: Any, group: tuple[str, ...], measures: tuple[str, ...]) -> Profile:
    """Digest, counts and sums of a DataFrame in one job: each partition answers with one line."""
    parts = frame.mapInArrow(partial(_partial_profile, group, measures), "part string").collect()
    return reduce(add, (_parsed(group, row[0]) for row in parts), Profile(group))


def _partial_profile(
    group: tuple[str, ...], measures: tuple[str, ...], batches: Iterator[Any]
) -> Iterator[Any]:
    import pyarrow as pa

    digest, counts, sums = TableDigest(), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for batch in batches:
        digest += batch_digest(batch)
        keys = zip(*(batch.column(name).to_pylist() for name in group), strict=True)
        values = zip(*(batch.column(name).to_pylist() for name in measures), strict=True)
        for key, measured in zip(keys, values, strict=True):
            named = tuple("" if item is None else str(item) for item in key)
            counts[named] += 1
            for measure, value in zip(measures, measured, strict=True):
                sums[(measure, *named)] += value or 0
    part = {
        "rows": digest.rows,
        "lanes": digest.lanes,
        "counts": [[*key, count] for key, count in counts.items()],
        "sums": [[*key, total] for key, total in sums.items()],
    }
    yield pa.RecordBatch.from_pydict({"part": [json.dumps(part)]})


def record_batch(rows: list[tuple[Any, ...]], schema: str) -> Any:
    """A pyarrow RecordBatch of `rows`, typed by a Spark schema string as "id string, offset bigint"."""
    import pyarrow as pa

    names, kinds = zip(*(column.split() for column in schema.split(", ")), strict=True)
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    arrays = [pa.array(column, _ARROW[kind](pa)) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(names))


_ARROW: dict[str, Callable[[Any], Any]] = {
    "string": lambda pa: pa.string(),
    "bigint": lambda pa: pa.int64(),
    "double": lambda pa: pa.float64(),
    "binary": lambda pa: pa.binary(),
    "array<bigint>": lambda pa: pa.list_(pa.int64()),
}


def _parsed(group: tuple[str, ...], line: str) -> Profile:
    part = json.loads(line)
    counts, sums = (Counter({tuple(key): total for *key, total in part[name]}) for name in ("counts", "sums"))
    return Profile(group, TableDigest(part["rows"], tuple(part["lanes"])), counts, sums)


def funnel(profile: Profile) -> dict[str, dict[str, int]]:
    """Rows per status, and per rule of those that one caught: {"status": {...}, "rules": {...}}."""
    statuses = {status: count for (status,), count in sorted(profile.counts_by("status").items())}
    rules = {rule: count for (rule,), count in sorted(profile.counts_by("rule").items()) if rule}
    return {"status": statuses, "rules": rules}


def check_balance(stage: str, read: int | None, written: int) -> None:
    """Refuses a stage that lost or doubled rows.

    Raises:
        BalanceError: names both numbers.
    """
    if read != written:
        raise BalanceError(
            f"stage {stage} read {read} rows and wrote {written}: they must be equal",
            "this is a bug; report it with the stage's log",
        )
