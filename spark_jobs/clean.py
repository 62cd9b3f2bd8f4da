"""Clean: extraction, repair, language, quality rules, in one map-only job. The table is its own ledger.

Every input row is written once: status kept (with its text), dropped (with rule, value and threshold,
without text), or quarantined as ingest left it. Each rule's measure is a column, so a threshold can be
tried out without measuring again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import spark_jobs.cleaning.gopher  # noqa: F401  registers its rules
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.cleaning import CleanConfig
from spark_jobs.cleaning.rules import RULES, Text, Verdict, judge, measure
from spark_jobs.engine import session
from spark_jobs.parts import gather
from spark_jobs.stages import CLEAN_PART
from spark_jobs.tables import FILE, Profile, check_files, read_table, record_batch, write_table

READ = ["id", "source", "path", "offset", "length", "url", "media_type", "text", "status", "rule"]
SCHEMA = ", ".join(
    [
        "id string, source string, path string, offset bigint, length bigint, url string, text string",
        "bytes bigint, language string, language_score double",
        *(f"{rule.column} double" for rule in RULES.values()),
        "status string, rule string, value double, threshold double",
    ]
)


def run_parts(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `clean`."""
    return gather(context, CLEAN_PART)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `clean_part`.

    Raises:
        BalanceError: a record or a byte of a file was lost or doubled.
    """
    before = Profile.from_bytes(context.inputs["profile"].read())
    with session(context) as spark:
        rows = read_table(spark, context.inputs["documents"]).select(*READ)
        cleaned = rows.mapInArrow(partial(_clean, context.config), SCHEMA)
        profile = write_table(
            spark, context, "documents", cleaned, (*FILE, "status", "rule"), ("bytes", "length")
        )
    check_files("clean", before, profile)
    return {
        "documents": context.artifact("documents", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }


def _clean(config: CleanConfig, batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield record_batch([_row(row, config) for row in batch.to_pylist()], SCHEMA)


def _row(row: dict[str, Any], config: CleanConfig) -> tuple[Any, ...]:
    from spark_jobs.cleaning.language import identify
    from spark_jobs.cleaning.text import clean_text

    where = (row["id"], row["source"], row["path"], row["offset"], row["length"], row["url"])
    if row["status"] != "kept":
        nothing = (None,) * (4 + len(RULES))
        return (*where, *nothing, row["status"], row["rule"], None, None)
    text = clean_text(row["text"], row["media_type"])
    found = identify(text)
    measures = measure(Text(text))
    verdict = _judge_language(found, config) or judge(measures, config)
    signals = [None if math.isnan(value) else value for value in measures.values()]
    size = len(text.encode())
    language = found or (None, None)
    if verdict:
        return (*where, None, size, *language, *signals, "dropped", *verdict)
    return (*where, text, size, *language, *signals, "kept", None, None, None)


def _judge_language(found: tuple[str, float] | None, config: CleanConfig) -> Verdict | None:
    if not config.languages or (
        found and found[0] in config.languages and found[1] >= config.min_language_score
    ):
        return None
    score = found[1] if found else 0.0
    wrong = found is None or found[0] not in config.languages
    return Verdict("language.code" if wrong else "language.score", score, config.min_language_score)
