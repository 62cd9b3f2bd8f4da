"""Ingest: files -> records. One map-only job: each task reads splits of files as streams and writes rows.

Row: id, source, path, member, offset, length, url, external_id, date, licence, metadata, media_type, text,
status (kept | skipped | quarantined), rule, detail. (member, offset, length) is a range of the file's decoded
bytes (spark_jobs.readers.compression), of Parquet its rows; per file the lengths add up to all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.sources import IngestConfig
from spark_jobs.engine import session
from spark_jobs.parts import gather
from spark_jobs.readers.compression import Place
from spark_jobs.readers.fields import Document, Fields
from spark_jobs.readers.listing import File
from spark_jobs.readers.records import Record, Split, read_records
from spark_jobs.readers.splits import plan
from spark_jobs.snapshot import read_listing
from spark_jobs.stages import INGEST_PART
from spark_jobs.tables import FILE, BalanceError, record_batch, write_table

SCHEMA = (
    "id string, source string, path string, member bigint, offset bigint, length bigint, url string, "
    "external_id string, date string, licence string, metadata string, media_type string, text string, "
    "status string, rule string, detail string"
)
SPLITS = (
    "source string, path string, uri string, size bigint, version string, format string, columns string, "
    "start_member bigint, start_offset bigint, stop_member bigint, stop_offset bigint"
)
BATCH_BYTES = 8 << 20
BATCH_ROWS = 512
TASK_BYTES = 64 << 20
NOT_AS_LISTED = {"file.unreadable", "file.changed"}


def run_parts(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `ingest`."""
    return gather(context, INGEST_PART)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `ingest_part`.

    Raises:
        StorageError: the place of a file does not answer.
        BalanceError: a file whose ranges do not cover its bytes.
    """
    files, fields = read_listing(context.inputs["files"])
    partitions, total = context.execution.spark.partitions, sum(file.size for file in files)
    with session(context) as spark:
        # A file is split only where it would keep one task busy while the others are done.
        size = max(TASK_BYTES, total // (4 * partitions))
        splits = plan(files, size, context.config, partial(_everywhere, spark))
        tasks = min(len(splits), max(partitions, total // TASK_BYTES))
        frame = spark.createDataFrame([_split_row(split) for split in splits], SPLITS)
        rows = frame.repartition(tasks).mapInArrow(partial(_read, fields, context.config), SCHEMA)
        profile = write_table(spark, context, "documents", rows, (*FILE, "status", "rule"), ("length",))
    rules = profile.counts_by(*FILE, "rule")
    changed = {(source, path) for source, path, rule in rules if rule in NOT_AS_LISTED}
    _check_cover(files, profile.sums_by("length", *FILE), changed)
    return {
        "documents": context.artifact("documents", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }


def _check_cover(
    files: list[File], covered: Mapping[tuple[str, ...], int], changed: Collection[tuple[str, ...]]
) -> None:
    """Each file's ranges, as read back, hold all of its bytes, if it was as listed.

    A compressed file and Parquet have some: what these decode to is known only to their readers, which make
    the same check.
    """
    for file in files:
        name = (file.source, file.path)
        known = not file.compression and file.format != "parquet" and name not in changed
        if name not in covered or (known and covered[name] != file.size):
            raise BalanceError(
                f"file {file.uri}: records and other ranges hold {covered.get(name, 0)} bytes of {file.size}",
                "this is a bug of a reader; report it with the file",
            )


def _everywhere(spark: Any, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Place | int | None]:
    """Calls `function`, which gives a place or a number, once an item, in tasks of their own."""
    if not items:
        return []
    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(partial(_called, function, items), RESULTS)
    results = {row["id"]: json.loads(row["result"]) for row in frame.collect()}
    return [Place(*found) if isinstance(found, list) else found for _, found in sorted(results.items())]


RESULTS = "id bigint, result string"


def _called(function: Callable[[Any], Any], items: Sequence[Any], batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        numbers = batch.column("id").to_pylist()
        yield record_batch([(number, json.dumps(function(items[number]))) for number in numbers], RESULTS)


def _split_row(split: Split) -> tuple[Any, ...]:
    return (*split.file, *(split.start or (None, None)), *(split.stop or (None, None)))


def _split(row: dict[str, Any]) -> Split:
    *of_file, start_member, start_offset, stop_member, stop_offset = row.values()
    start = None if start_offset is None else Place(start_member, start_offset)
    stop = None if stop_offset is None else Place(stop_member, stop_offset)
    return Split(File(*of_file), start, stop)


def _read(fields: dict[str, Fields], config: IngestConfig, batches: Iterator[Any]) -> Iterator[Any]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for batch in batches:
        for row in batch.to_pylist():
            split = _split(row)
            for record in read_records(split, fields[split.file.source], config):
                rows.append(_row(split.file, record))
                size += len(record.document.text) if record.document else 0
                if size > BATCH_BYTES or len(rows) >= BATCH_ROWS:
                    yield _batch(rows)
                    rows, size = [], 0
    yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> Any:
    """The rows as a batch; a text goes through binary, or Arrow would make a string of it, to check it."""
    import pyarrow as pa

    batch = record_batch(rows, SCHEMA.replace("text string", "text binary"))
    at = batch.schema.get_field_index("text")
    return batch.set_column(at, "text", batch.column(at).cast(pa.string()))


NOTHING = (None,) * len(Document._fields)


def _row(file: File, record: Record) -> tuple[Any, ...]:
    text, *about = record.document or NOTHING
    where = (record.id, file.source, file.path, *record.place, record.length)
    return (*where, *about, text, record.status, record.rule or None, record.detail or None)
