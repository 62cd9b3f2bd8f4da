"""The data plane's knobs: sources, cleaning, deduplication, the held-out split, tokenizer, shards."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bloomery.config.base import Config
from bloomery.config.cleaning import CleanConfig, MeasureConfig
from bloomery.config.gates import CorpusGateConfig, ShardGateConfig
from bloomery.config.sources import IngestConfig, SnapshotConfig


class MinHashConfig(Config):
    """Signatures of near duplicates: MinHash of word n-grams, banded."""

    ngram: int = Field(5, ge=1, description="words a shingle")
    bands: int = Field(14, ge=1, description="bands of the MinHash signature")
    rows: int = Field(8, ge=1, description="rows a band")
    overlap: bool = Field(True, description="bands also begin half a band later: more near duplicates found")
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of the hash functions")


class RepeatsConfig(Config):
    """Pieces of surviving texts that stand elsewhere, too: all but one are cut out."""

    lines: bool = Field(False, description="cut lines that stand elsewhere, too")
    paragraphs: bool = Field(False, description="cut paragraphs that stand elsewhere, too (CCNet)")
    min_characters: int = Field(20, ge=1, description="a shorter line or paragraph may stand anywhere")
    words: int | None = Field(
        None, ge=10, description="cut runs of so many words that stand elsewhere, too (Lee et al.: 50)"
    )


class DedupConfig(Config):
    """Which documents say the same, which of them survives, then the held-out split."""

    url: bool = Field(False, description="documents of one URL are duplicates, whatever they say")
    threshold: float = Field(
        0.7, gt=0, le=1, description="least verified Jaccard of shingles to call a near duplicate"
    )
    prefer: tuple[str, ...] = Field(
        (), description="sources whose copy survives, best first; all others come after these, all alike"
    )
    repeats: RepeatsConfig = Field(RepeatsConfig(), description="pieces of texts that stand elsewhere, too")
    held_out: float = Field(
        0.05, ge=0, lt=1, description="fraction of surviving documents kept apart for evaluation"
    )


class DecontaminateConfig(Config):
    """How texts that hold items of the eval sets are told, and what becomes of them."""

    ngram: int = Field(13, ge=4, description="words in a row that a text and an item share (GPT-3: 13)")
    min_words: int = Field(
        8, ge=1, description="a question of fewer words counts only where its answer follows"
    )
    answer_window: int = Field(
        64, ge=1, description="words after the match in which the answer is looked for"
    )
    action: Literal["drop", "cut"] = Field(
        "drop", description="drop the document, or cut the match (with its answer) out of it"
    )


class LedgerConfig(Config):
    """The account of every record: nothing to choose."""


class ProfileConfig(Config):
    """What is counted of a snapshot: nothing to choose."""


class TokenizerConfig(Config):
    """A byte-level BPE trained on the corpus, or one pinned by digest."""

    vocab_size: int = Field(4096, ge=260, le=1 << 20, description="entries, special tokens included")
    sample_bytes: int = Field(
        32 << 20, gt=0, description="most bytes of text to train on, chosen by hash of document id"
    )
    pinned: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="sha256 of a tokenizer.json in the store's cas/, used as it is",
    )


class ShardConfig(Config):
    """Token shards: Megatron .bin/.idx, one pair a shard."""

    target_bytes: int = Field(
        64 << 20, ge=1 << 10, description="bytes a shard aims at (128-256 MiB at scale)"
    )
    seed: int = Field(1, ge=0, lt=1 << 63, description="seed of the document key")


class ReportConfig(Config):
    """What is shown of a dataset: nothing to choose."""


class MixtureSource(Config):
    """A source's share of a training run."""

    name: str = Field(description="name of the source")
    weight: float = Field(
        ge=0, description="share of the run's tokens, relative to the other sources' weights"
    )
    max_epochs: float | None = Field(
        None, gt=0, description="most times it may be repeated; none is the mixture's"
    )


class MixtureConfig(Config):
    """How many tokens of each source a training run takes."""

    sources: tuple[MixtureSource, ...] = Field(
        (), description="weight of every source; none takes each by its size"
    )
    tokens: int | None = Field(
        None, gt=0, description="token budget; none takes what the caps allow, at most once"
    )
    max_epochs: float = Field(
        4.0,
        gt=0,
        description="most times a source may be repeated (arXiv:2305.16264: up to 4 is nearly as new)",
    )

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sources of the mixture must differ; named twice: {', '.join(twice)}")
        return self


class CorpusConfig(Config):
    """From sources to shards."""

    snapshot: SnapshotConfig = Field(description="where documents come from")
    ingest: IngestConfig = Field(IngestConfig(), description="how files become records")
    measure: MeasureConfig = Field(MeasureConfig(), description="extraction, repair, what is measured")
    clean: CleanConfig = Field(CleanConfig(), description="bounds that judge what was measured")
    minhash: MinHashConfig = Field(MinHashConfig(), description="signatures of near duplicates")
    dedup: DedupConfig = Field(DedupConfig(), description="deduplication and the held-out split")
    decontaminate: DecontaminateConfig = Field(
        DecontaminateConfig(), description="what becomes of texts that hold items of the eval sets"
    )
    ledger: LedgerConfig = Field(LedgerConfig(), description="the account of every record")
    profile: ProfileConfig = Field(ProfileConfig(), description="what is counted of the snapshot")
    gate: CorpusGateConfig = Field(CorpusGateConfig(), description="policy for the deduplicated snapshot")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="tokenizer")
    shards: ShardConfig = Field(ShardConfig(), description="token shards")
    mixture: MixtureConfig = Field(MixtureConfig(), description="tokens of each source in a training run")
    shard_gate: ShardGateConfig = Field(ShardGateConfig(), description="policy for the shards")
    report: ReportConfig = Field(ReportConfig(), description="what is shown of the dataset")
