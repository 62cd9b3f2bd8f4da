"""Tables of a stage: written once by one Delta commit below the attempt's folder, then read back once.

The read-back takes the content digest and the counts in one job: what is committed is what is read, not
what was meant to be written. Digests and counts add up, so a table's profile is kept by groups of rows: leave
the groups of a file out, and it is the profile of the table without that file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.digests import TableDigest, grouped_digests
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.errors import BloomeryError

Key = tuple[str, ...]
FILE = ("source", "path")
"""Columns that name a record's file."""
ROWS = 8192
"""Rows that are worked on at once where columns are short."""
BATCH_BYTES = 32 << 20


class BalanceError(BloomeryError):
    """Rows in are not rows out: something was lost or doubled."""


class Cell(NamedTuple):
    """A group of a table's rows."""

    digest: TableDigest
    sums: tuple[int, ...]
    """Sum of each measured column."""

    def joined(self, other: Cell) -> Cell:
        """Both groups as one."""
        return Cell(self.digest + other.digest, tuple(map(add, self.sums, other.sums)))


@dataclass(frozen=True)
class Profile:
    """What one read of a table says of it, by groups of rows."""

    group: tuple[str, ...]
    """The columns it is grouped by."""
    measures: tuple[str, ...]
    """The integer columns that are summed."""
    schema: tuple[tuple[str, str], ...] = ()
    """(name, Spark type) of the table's columns."""
    cells: dict[Key, Cell] = field(default_factory=dict)
    """By the values of `group`, null as an empty string."""

    def __add__(self, other: Profile) -> Profile:
        cells = dict(self.cells)
        for key, cell in other.cells.items():
            cells[key] = cells[key].joined(cell) if key in cells else cell
        return replace(self, schema=self.schema or other.schema, cells=cells)

    @property
    def digest(self) -> str:
        """Content digest of the table."""
        return self._total.hexdigest(self.schema)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._total.rows

    @property
    def _total(self) -> TableDigest:
        return reduce(add, (cell.digest for cell in self.cells.values()), TableDigest())

    def counts_by(self, *columns: str) -> Counter[Key]:
        """Rows per tuple of values of some of the columns."""
        return self._by(columns, lambda cell: cell.digest.rows)

    def sums_by(self, measure: str, *columns: str) -> Counter[Key]:
        """Sum of a measured column per tuple of values of some of the columns."""
        position = self.measures.index(measure)
        return self._by(columns, lambda cell: cell.sums[position])

    def _by(self, columns: tuple[str, ...], value: Callable[[Cell], int]) -> Counter[Key]:
        positions = [self.group.index(column) for column in columns]
        merged = Counter[Key]()
        for key, cell in self.cells.items():
            merged[tuple(key[position] for position in positions)] += value(cell)
        return merged

    def without(self, files: Collection[Key]) -> Profile:
        """The profile of the table without the rows of `files`, each a (source, path)."""
        positions = [self.group.index(column) for column in FILE]
        left = {k: c for k, c in self.cells.items() if tuple(k[p] for p in positions) not in files}
        return replace(self, cells=left)

    def kept(self) -> Profile:
        """The profile of the rows that are kept."""
        position = self.group.index("status")
        return replace(self, cells={k: c for k, c in self.cells.items() if k[position] == "kept"})

    def output(self) -> Output:
        """A documents table: `documents` and `bytes` are of what is kept, the facts are the funnel."""
        kept = ("kept",)
        return Output(
            digest=self.digest,
            rows=self.rows,
            documents=self.counts_by("status")[kept],
            bytes=self.sums_by(self.measures[0], "status")[kept],
            facts=self.funnel(),
        )

    def funnel(self) -> dict[str, dict[str, int]]:
        """Rows per status, and per rule of those that one caught: {"status": {...}, "rules": {...}}."""
        statuses = {status: count for (status,), count in sorted(self.counts_by("status").items())}
        rules = {rule: count for (rule,), count in sorted(self.counts_by("rule").items()) if rule}
        return {"status": statuses, "rules": rules}

    def to_bytes(self) -> bytes:
        """JSON; the same for equal tables."""
        cells = [
            [*key, cell.digest.rows, *(f"{lane:016x}" for lane in cell.digest.lanes), *cell.sums]
            for key, cell in sorted(self.cells.items())
        ]
        about = {"group": self.group, "measures": self.measures, "schema": self.schema}
        return canonical(json.loads(json.dumps(about | {"cells": cells})))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote."""
        read = json.loads(data)
        width = len(read["group"])
        cells = {
            tuple(row[:width]): Cell(
                TableDigest(row[width], tuple(int(lane, 16) for lane in row[width + 1 : width + 9])),
                tuple(int(total) for total in row[width + 9 :]),
            )
            for row in read["cells"]
        }
        schema = tuple((name, kind) for name, kind in read["schema"])
        return cls(tuple(read["group"]), tuple(read["measures"]), schema, cells)


def read_table(spark: Any, *tables: Artifact) -> Any:
    """The DataFrame of a table, or of all rows of several that have one schema.

    Read by what their logs name: Delta's own reader first works out the state of a table that may have
    changed, which costs 2 CPU-seconds, and ours were written once. Several tables are one scan, so a snapshot
    that grew by a hundred small parts is planned and split as one that was taken at once.
    """
    from pyspark.sql.types import StructType

    paths, schemas = [], []
    for table in tables:
        schema, files = logged_files(table)
        schemas.append(schema)
        paths += [f"{table.spark_uri}/{file}" for file in files]
    assert all(schema == schemas[0] for schema in schemas), f"not one schema: {[t.place for t in tables]}"
    read = StructType.fromJson(schemas[0])
    return spark.read.schema(read).parquet(*paths) if paths else spark.createDataFrame([], read)


def logged_files(artifact: Artifact) -> tuple[dict[str, Any], list[str]]:
    """Spark schema, as JSON, and Parquet files of a table that one commit wrote: version 0 of its Delta log.

    Raises:
        StoreError: the log is gone.
    """
    log = artifact.store.read(f"{artifact.place}/_delta_log/{0:020d}.json").decode()
    actions = [json.loads(line) for line in log.splitlines() if line]
    (schema,) = (action["metaData"]["schemaString"] for action in actions if "metaData" in action)
    return json.loads(schema), [unquote(action["add"]["path"]) for action in actions if "add" in action]


def scratch_table(spark: Any, context: Context, name: str, frame: Any) -> Any:
    """Computes `frame` once, as Parquet below the attempt's folder; the body removes `scratch` in the end."""
    uri = context.store.spark_uri(context.place(f"scratch/{name}"))
    frame.write.mode("error").parquet(uri)
    return spark.read.schema(frame.schema).parquet(uri)


def write_table(
    spark: Any, context: Context, name: str, frame: Any, group: tuple[str, ...], measures: tuple[str, ...]
) -> Profile:
    """Writes `frame` as output `name`, reads it back once, and returns its profile.

    Args:
        spark: session.
        context: the attempt.
        name: output's name.
        frame: DataFrame to write.
        group: columns to count rows by.
        measures: integer columns to sum per group.
    """
    uri = context.store.spark_uri(context.place(name))
    frame.write.format("delta").mode("error").save(uri)
    written = read_table(spark, context.artifact(name, Output(digest="")))
    return profile_of(written, group, measures)


def profile_of(frame: Any, group: tuple[str, ...], measures: tuple[str, ...]) -> Profile:
    """Digest, counts and sums of a DataFrame in one job: each partition answers with one line."""
    schema = tuple((column.name, column.dataType.simpleString()) for column in frame.schema)
    empty = Profile(group, measures, schema)
    parts = frame.mapInArrow(partial(_partial_profile, empty), "part string").collect()
    return reduce(add, (Profile.from_bytes(row[0].encode()) for row in parts), empty)


def _partial_profile(empty: Profile, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    profile = empty
    for batch in batches:
        values = [batch[name].fill_null(0).to_numpy() for name in empty.measures]
        cells = {
            tuple("" if value is None else str(value) for value in key): Cell(
                digest, tuple(int(column[numbers].sum()) for column in values)
            )
            for key, (digest, numbers) in grouped_digests(batch, empty.group).items()
        }
        profile += replace(empty, cells=cells)
    yield pa.RecordBatch.from_pydict({"part": [profile.to_bytes().decode()]})


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
    "boolean": lambda pa: pa.bool_(),
    "int": lambda pa: pa.int32(),
    "array<string>": lambda pa: pa.list_(pa.string()),
    "array<bigint>": lambda pa: pa.list_(pa.int64()),
}


def joined(batches: Iterator[Any]) -> Iterator[Any]:
    """Tables of up to ROWS rows or BATCH_BYTES, of batches that are smaller: numpy and pyarrow like long
    columns."""
    import pyarrow as pa

    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= ROWS or sum(one.nbytes for one in held) >= BATCH_BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held = []
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


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


def check_files(stage: str, before: Profile, after: Profile) -> None:
    """Refuses a stage that lost or doubled a record or a byte of any file.

    Raises:
        BalanceError: names the file and both numbers.
    """
    for what, read, written in (
        ("rows", before.counts_by(*FILE), after.counts_by(*FILE)),
        ("decoded bytes", before.sums_by("length", *FILE), after.sums_by("length", *FILE)),
    ):
        for source, path in sorted(read.keys() | written.keys()):
            one, other = read[source, path], written[source, path]
            if one != other:
                raise BalanceError(
                    f"stage {stage}: file {source}/{path} has {one} {what} going in and {other} coming out",
                    "this is a bug; report it with the stage's log",
                )
