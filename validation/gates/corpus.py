"""The gate on a deduplicated snapshot: is this data fit to train on, and how far is it from the last
published?"""

from __future__ import annotations

import math
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import CorpusGateConfig
from validation.gates.suite import Check, judge
from validation.gates.verdict import verdict


def body(context: Context) -> dict[str, Artifact]:
    """Measures the snapshot in one aggregation, lets the suite judge the profile, and returns the verdict."""
    import pandas as pd

    policy: CorpusGateConfig = context.config
    profile = measure(context)
    frame = pd.DataFrame([{name: float(value) for name, value in profile.items()}])
    ingest, clean, kept = (context.inputs[name].output.facts for name in ("ingested", "cleaned", "documents"))
    tables = {
        "Ingested records": ingest["status"],
        "Cleaned documents": clean["status"],
        "Dropped by rule": clean["rules"],
        "After deduplication and decontamination": kept["status"],
    }
    return verdict(context, "corpus_gate", judge(frame, checks(policy, "baseline" in context.inputs)), tables)


def checks(policy: CorpusGateConfig, baseline: bool) -> list[Check]:
    """What the policy demands of a profile."""
    wanted = [
        Check("documents", "surviving documents", at_least=policy.min_documents),
        Check("held_out", "held-out documents", at_least=policy.min_held_out),
        Check("null_texts", "survivors without text", at_most=0),
        Check("repeated_ids", "survivors that share an id", at_most=0),
        Check("quarantined", "fraction of records quarantined", at_most=policy.max_quarantined),
        Check("dropped", "fraction of records dropped or duplicate", at_most=policy.max_dropped),
    ]
    if baseline:
        wanted.append(
            Check(
                "drift",
                "relative change of documents against the last published",
                at_most=policy.max_row_drift,
            )
        )
    return wanted


def measure(context: Context) -> dict[str, Any]:
    """The profile: counts from one aggregation on the engine, fractions from the stages' own accounts."""
    from spark_jobs.engine import session

    with session(context) as spark:
        counts = (
            spark.read.format("delta")
            .load(context.inputs["documents"].spark_uri)
            .where("status = 'kept'")
            .selectExpr(
                "count(*) AS documents",
                "count_if(split = 'held_out') AS held_out",
                "count_if(text IS NULL OR text = '') AS null_texts",
                "count(id) - count(DISTINCT id) AS repeated_ids",
            )
            .first()
        )
        assert counts is not None
        profile: dict[str, Any] = counts.asDict()
    ingested = context.inputs["ingested"].output
    records = sum(ingested.facts["status"].values())
    quarantined = ingested.facts["status"].get("quarantined", 0)
    profile["quarantined"] = quarantined / records if records else math.nan
    profile["dropped"] = 1 - (profile["documents"] + quarantined) / records if records else math.nan
    if "baseline" in context.inputs:
        before = context.inputs["baseline"].output.documents or 0
        profile["drift"] = abs(profile["documents"] - before) / before if before else math.nan
    return profile
