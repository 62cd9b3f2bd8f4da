"""The gates, declared."""

from __future__ import annotations

from bloomery.artifacts.stage import Stage
from bloomery.config.gates import CorpusGateConfig, ShardGateConfig

CORPUS_GATE = Stage(
    name="corpus_gate",
    version=2,
    config=CorpusGateConfig,
    inputs={
        "documents": "decontaminate.documents",
        "profile": "profile.profile",
        "baseline": "baseline.profile",
    },
    optional=("baseline",),
    body="validation.gates.corpus:body",
)
"""Judges `profile`; `documents` says of which data. `baseline` is the published run's stage `profile`."""

SHARD_GATE = Stage(
    name="shard_gate",
    version=2,
    config=ShardGateConfig,
    inputs={"shards": "shard.shards", "documents": "decontaminate.documents"},
    body="validation.gates.shards:body",
)
