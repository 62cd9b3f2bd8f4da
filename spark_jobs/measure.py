"""Measure: extraction, repair, line rules, personal data, language, and every rule's signal as a column.

One map-only job of Python, and the only one: what judges the signals is SQL (`clean`), so a changed bound
measures nothing again.

    id, source, path, member, offset, length, url, external_id, date, licence, metadata, text, bytes,
    language, language_score, a column a signal, status (kept | as ingest left it | quarantined), rule, detail

A document that is too large, or that the extractor fails on, is quarantined with its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.cleaning import MeasureConfig
from spark_jobs.cleaning import words
from spark_jobs.cleaning.html import ExtractionError, extractor
from spark_jobs.cleaning.pinned import read_pinned
from spark_jobs.cleaning.signals import SIGNALS, Document, Measured, column, measure_texts
from spark_jobs.cleaning.text import repair
from spark_jobs.engine import session
from spark_jobs.parts import gather
from spark_jobs.stages import MEASURE_PART
from spark_jobs.tables import FILE, Profile, check_files, read_table, record_batch, write_table

RECORD = (
    "id string, source string, path string, member bigint, offset bigint, length bigint, url string, "
    "external_id string, date string, licence string, metadata string"
)
SCHEMA = ", ".join(
    [
        RECORD,
        "text string, bytes bigint, language string, language_score double",
        *(f"{column(name)} double" for name in SIGNALS),
        "status string, rule string, detail string",
    ]
)
READ = [*(kind.split()[0] for kind in RECORD.split(", ")), "media_type", "text", "status", "rule", "detail"]
BATCH_BYTES = 8 << 20
TOO_LARGE = "document.too_large"
Record = Mapping[str, Any]
Row = tuple[Any, ...]


def run_parts(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `measure`."""
    return gather(context, MEASURE_PART)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `measure_part`.

    Raises:
        PinnedFileError: a file of the config is not there, or is another.
        BalanceError: a record or a byte of a file was lost or doubled.
    """
    config: MeasureConfig = context.config
    for file in (config.bad_words, config.blocked_urls, config.classifier and config.classifier.file):
        if file:
            read_pinned(file)
    before = Profile.from_bytes(context.inputs["profile"].read())
    with session(context) as spark:
        rows = read_table(spark, context.inputs["documents"]).select(*READ)
        measured = rows.mapInArrow(partial(_measure, config), SCHEMA)
        group = (*FILE, "status", "rule")
        profile = write_table(spark, context, "documents", measured, group, ("bytes", "length"))
    check_files("measure", before, profile)
    return {
        "documents": context.artifact("documents", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }


def _measure(config: MeasureConfig, batches: Iterator[Any]) -> Iterator[Any]:
    rows: list[Row] = []
    size = 0
    for records in words.batches(_records(batches), _characters):
        rows += measure_rows(records, config)
        size += sum(map(_characters, records))
        if size > BATCH_BYTES:
            yield record_batch(rows, SCHEMA)
            rows, size = [], 0
    yield record_batch(rows, SCHEMA)


def _records(batches: Iterator[Any]) -> Iterator[Record]:
    return (
        row for batch in batches for start in range(len(batch)) for row in batch.slice(start, 1).to_pylist()
    )


def _characters(row: Record) -> int:
    return len(row["text"] or "")


def measure_rows(rows: Sequence[Record], config: MeasureConfig) -> list[Row]:
    """The rows of SCHEMA for some records of `ingest`."""
    mended = [_mended(row, config) for row in rows]
    found = iter(measure_texts([text for text in mended if isinstance(text, Document)], config))
    return [
        (
            *(row[name] for name in READ[:-5]),
            *(_kept(next(found), row) if isinstance(text, Document) else text),
        )
        for row, text in zip(rows, mended, strict=True)
    ]


def _mended(row: Record, config: MeasureConfig) -> Document | Row:
    """The document of a record; of one that is not measured, the columns behind RECORD."""
    if row["status"] != "kept":
        return (*_unmeasured(row["text"]), row["status"], row["rule"], row["detail"])
    size = len(row["text"].encode())
    if size > config.max_document_bytes:
        detail = f"{size} bytes, more than {config.max_document_bytes}"
        return (*_unmeasured(row["text"]), "quarantined", TOO_LARGE, detail)
    try:
        return Document(_text(row, config), row["url"], row["metadata"])
    except ExtractionError as error:
        return (*_unmeasured(row["text"]), "quarantined", error.rule, str(error))


def _kept(found: Measured, row: Record) -> Row:
    language = found.language or (None, None)
    return (
        *(found.text, len(found.text.encode()), *language, *found.signals.values()),
        *("kept", None, row["detail"]),
    )


def _text(row: Record, config: MeasureConfig) -> str:
    """The mended text of a record; of HTML, that of its main content."""
    text = row["text"]
    if row["media_type"] == "text/html":
        text = extractor(config.extractor, config.extract_seconds).extract(text)
    return repair(text)


def _unmeasured(text: str | None) -> Row:
    return (text, None if text is None else len(text.encode()), None, None, *(None for _ in SIGNALS))
