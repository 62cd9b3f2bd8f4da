"""Ingest: files -> records. One map-only job: each task reads whole files as streams and writes rows.

Row: id, source, path, offset, length (decoded bytes), url, external_id, media_type, text, status (kept |
quarantined), rule, detail. Per file the lengths must add up to its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.sources import IngestConfig
from spark_jobs.engine import session
from spark_jobs.parts import gather
from spark_jobs.readers.listing import File
from spark_jobs.readers.records import Fields, Record, read_records
from spark_jobs.snapshot import read_listing
from spark_jobs.stages import INGEST_PART
from spark_jobs.tables import FILE, BalanceError, record_batch, write_table

SCHEMA = (
    "id string, source string, path string, member bigint, offset bigint, length bigint, url string, "
    "external_id string, media_type string, text string, status string, rule string, detail string"
)
BATCH_BYTES = 8 << 20
BATCH_ROWS = 512
TASK_BYTES = 64 << 20


def run_parts(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `ingest`."""
    return gather(context, INGEST_PART)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `ingest_part`.

    Raises:
        SourceError: a file that cannot be read or has changed since the snapshot.
        BalanceError: a file whose ranges do not cover its bytes.
    """
    files, fields = read_listing(context.inputs["files"])
    with session(context) as spark:
        tasks = min(len(files), max(context.execution.spark.partitions, _bytes(files) // TASK_BYTES))
        frame = spark.createDataFrame([tuple(file) for file in files], list(File._fields))
        rows = frame.repartition(tasks).mapInArrow(partial(_read, fields, context.config), SCHEMA)
        profile = write_table(spark, context, "documents", rows, (*FILE, "status", "rule"), ("length",))
    _check_cover(files, profile.sums_by("length", *FILE))
    return {
        "documents": context.artifact("documents", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }


def _bytes(files: list[File]) -> int:
    return sum(file.size for file in files)


def _check_cover(files: list[File], covered: Mapping[tuple[str, ...], int]) -> None:
    """Each file's ranges, as read back, hold all of its bytes; a compressed file has some."""
    for file in files:
        found = covered.get((file.source, file.path))
        compressed = file.path.endswith((".gz", ".zst"))
        if (found is None and file.size) or (not compressed and (found or 0) != file.size):
            raise BalanceError(
                f"file {file.uri}: records and quarantined ranges hold {found} bytes, the file {file.size}",
                "this is a bug of a reader; report it with the file",
            )


def _read(fields: dict[str, Fields], config: IngestConfig, batches: Iterator[Any]) -> Iterator[Any]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for batch in batches:
        for row in batch.to_pylist():
            file = File(**row)
            for record in read_records(file, fields[file.source], config):
                rows.append(_row(file, record))
                size += len(record.text or "")
                if size > BATCH_BYTES or len(rows) >= BATCH_ROWS:
                    yield record_batch(rows, SCHEMA)
                    rows, size = [], 0
    yield record_batch(rows, SCHEMA)


def _row(file: File, record: Record) -> tuple[Any, ...]:
    status = "quarantined" if record.rule else "kept"
    return (
        *(
            record.id,
            file.source,
            file.path,
            None,
            record.offset,
            record.length,
            record.url,
            record.external_id,
        ),
        *(record.media_type, record.text, status, record.rule or None, record.detail or None),
    )
