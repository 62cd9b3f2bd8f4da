"""Every stage of the system by name. Declarations only: no engine is imported."""

from __future__ import annotations

import spark_jobs.stages
import training.stages
import validation.stages
from bloomery.artifacts.stage import Stage

STAGES: dict[str, Stage] = {
    stage.name: stage
    for module in (spark_jobs.stages, training.stages, validation.stages)
    for stage in vars(module).values()
    if isinstance(stage, Stage)
}

DATA_STAGES = (
    *("snapshot", "ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate", "ledger"),
    *("profile", "corpus_gate", "tokenizer", "shard", "mixture", "shard_gate", "report"),
)
"""The stages of the DAG `corpus`, in its order."""
REPORTED = ("corpus_gate", "shard_gate", "report")
"""Those of them that leave a report for people."""
