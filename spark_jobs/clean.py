"""Clean: SQL over the signals of `measure`. The table is its own ledger.

Every row of `measure` is written once: status kept (with its text), dropped (with rule, value and threshold,
without text), or as `measure` left it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from spark_jobs.cleaning.verdicts import verdict
from spark_jobs.engine import session
from spark_jobs.parts import gather
from spark_jobs.stages import CLEAN_PART
from spark_jobs.tables import FILE, Profile, check_files, read_table, write_table


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
        rows = read_table(spark, context.inputs["documents"])
        columns = [name for name in rows.columns if name not in {"text", "status", "rule", "detail"}]
        judged = rows.selectExpr(
            "*", f"CASE WHEN status = 'kept' THEN {verdict(context.config)} END AS verdict"
        )
        cleaned = judged.selectExpr(
            *columns,
            "CASE WHEN status = 'kept' AND verdict IS NULL THEN text END AS text",
            "CASE WHEN verdict IS NULL THEN status ELSE 'dropped' END AS status",
            "coalesce(verdict.rule, rule) AS rule",
            "verdict.value AS value",
            "verdict.threshold AS threshold",
            "detail",
        )
        group = (*FILE, "status", "rule")
        profile = write_table(spark, context, "documents", cleaned, group, ("bytes", "length"))
    check_files("clean", before, profile)
    return {
        "documents": context.artifact("documents", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }
