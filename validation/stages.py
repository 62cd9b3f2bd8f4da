"""The stages of the artifact plane: declarations only."""

from bloomery.artifacts.stage import Stage
from bloomery.config.corpus import ReportConfig
from bloomery.config.release import EvaluateConfig, ExportConfig
from validation.gates.stages import CORPUS_GATE, SHARD_GATE

EVALUATE = Stage(
    name="evaluate",
    version=2,
    config=EvaluateConfig,
    inputs={
        "checkpoint": "checkpoint.weights",
        "shards": "shard.shards",
        "tokenizer": "tokenizer.tokenizer",
    },
    libraries=("torch",),
    body="validation.evals.evaluate:evaluate",
)
"""Output: eval (JSON: bits per byte, loss, tokens, bytes, step, a generated sample)."""

EXPORT = Stage(
    name="export",
    version=2,
    config=ExportConfig,
    inputs={
        "checkpoint": "train.checkpoint",
        "tokenizer": "tokenizer.tokenizer",
        "eval": "evaluate.eval",
    },
    body="validation.release.export:export",
    optional=("eval",),
)
"""Output: model (a folder that transformers loads)."""

REPORT = Stage(
    name="report",
    version=1,
    config=ReportConfig,
    inputs={
        "profile": "profile.profile",
        "shards": "shard.shards",
        "corpus_gate_verdict": "corpus_gate.verdict",
        "shard_gate_verdict": "shard_gate.verdict",
        "baseline": "baseline.profile",
    },
    body="validation.report.dataset:body",
    optional=("baseline",),
)
"""Output: report (HTML)."""

__all__ = ["CORPUS_GATE", "EVALUATE", "EXPORT", "REPORT", "SHARD_GATE"]
