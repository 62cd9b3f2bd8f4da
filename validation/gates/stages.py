"""The gates, declared."""

from __future__ import annotations

from bloomery.artifacts.stage import Stage
from bloomery.config.corpus import CorpusGateConfig, ShardGateConfig

CORPUS_GATE = Stage(
    name="corpus_gate",
    version=1,
    config=CorpusGateConfig,
    inputs={
        "ingested": "ingest.documents",
        "cleaned": "clean.documents",
        "documents": "decontaminate.documents",
        "baseline": "baseline.documents",
    },
    optional=("baseline",),
    body="validation.gates.corpus:body",
)

SHARD_GATE = Stage(
    name="shard_gate",
    version=1,
    config=ShardGateConfig,
    inputs={"shards": "shard.shards", "documents": "decontaminate.documents"},
    body="validation.gates.shards:body",
)
