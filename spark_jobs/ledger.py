"""The ledger: one row an input record, with its fate and what decided it.

    ingest: quarantined, skipped | clean: dropped, quarantined | dedup: duplicate | decontaminate:
    contaminated all others: kept

Per file, rows and decoded bytes are those that `ingest` has read, or the stage fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from spark_jobs.engine import session
from spark_jobs.parts import read_documents
from spark_jobs.tables import FILE, Profile, check_files, read_table, write_table

READ = (
    "id",
    "source",
    "path",
    "member",
    "offset",
    "length",
    "url",
    "external_id",
    "status",
    "rule",
    "detail",
)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `ledger`.

    Raises:
        BalanceError: a record or a byte of a file was lost or doubled on the way.
    """
    before = Profile.from_bytes(context.inputs["read"].read())
    with session(context) as spark:
        rows = _rows(
            read_documents(spark, context.inputs["ingested"], *READ),
            read_documents(spark, context.inputs["cleaned"]),
            read_table(spark, context.inputs["decisions"]),
            read_table(spark, context.inputs["documents"]),
        )
        group = (*FILE, "stage", "status", "rule")
        profile = write_table(spark, context, "ledger", rows, group, ("length",))
    check_files("ledger", before, profile)
    return {
        "ledger": context.artifact("ledger", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }


def _rows(ingested: Any, cleaned: Any, decisions: Any, documents: Any) -> Any:
    """Each record with the verdict of the first stage that did not keep it."""
    found = ingested.withColumnsRenamed({"status": "read", "rule": "read_rule"})
    clean = cleaned.selectExpr("id", "status AS cleaned", "rule AS clean_rule", "value", "threshold")
    dedup = decisions.selectExpr("id", "status AS decided", "rule AS dedup_rule", "duplicate_of", "jaccard")
    final = documents.selectExpr("id", "status AS final", "rule AS final_rule", "item", "split", "cut")
    joined = found.join(clean, "id", "left").join(dedup, "id", "left").join(final, "id", "left")
    stage = """CASE WHEN read <> 'kept' THEN 'ingest' WHEN cleaned <> 'kept' THEN 'clean'
        WHEN decided <> 'kept' THEN 'dedup' WHEN final = 'duplicate' THEN 'dedup'
        WHEN final <> 'kept' THEN 'decontaminate' END AS stage"""
    # A record that a stage has lost has no status there: it is `lost`, and the balance is checked below.
    status = """CASE WHEN read <> 'kept' THEN read WHEN cleaned <> 'kept' THEN cleaned
        WHEN decided <> 'kept' THEN decided ELSE coalesce(final, 'lost') END AS status"""
    rule = "coalesce(read_rule, clean_rule, dedup_rule, final_rule) AS rule"
    return joined.selectExpr(
        *("id", "source", "path", "member", "offset", "length", "url", "external_id"),
        *(
            stage,
            status,
            rule,
            "value",
            "threshold",
            "duplicate_of",
            "jaccard",
            "item",
            "split",
            "cut",
            "detail",
        ),
    )
