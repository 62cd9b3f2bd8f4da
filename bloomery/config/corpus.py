"""The data plane's knobs: sources, cleaning, deduplication, the held-out split, tokenizer, shards."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from bloomery.config.base import Config, execution

Format = Literal["auto", "jsonl", "text", "markdown", "html", "python"]

LANGUAGES = frozenset(
    """
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb
    co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he
    hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez
    li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn
    no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq
    sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo
    yue zh
    """.split()  # noqa: SIM905  a list of 176 literals would fill a page
)
"""Codes that the language identifier (fastText lid.176) can answer with."""


class Source(Config):
    """One place that documents come from."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="name of the source in every table and report"
    )
    uri: str = execution(
        description="builtin://python, or a folder, file or glob: a path, file:// or s3://bucket/prefix"
    )
    format: Format = Field("auto", description="format of the files; auto goes by the suffix")
    text_field: str = Field("text", description="JSONL: field that holds the text")
    id_field: str = Field("id", description="JSONL: field that holds the publisher's id, when present")
    url_field: str = Field("url", description="JSONL: field that holds the URL, when present")

    @field_validator("uri")
    @classmethod
    def _known_scheme(cls, uri: str) -> str:
        scheme = uri.split("://", 1)[0] if "://" in uri else "file"
        if scheme not in {"builtin", "file", "s3"}:
            raise ValueError(
                f"scheme {scheme!r} is not known; allowed: a path, file://, s3://, builtin://python"
            )
        if scheme == "builtin" and uri != "builtin://python":
            raise ValueError(f"{uri!r} is not a built-in source; allowed: builtin://python")
        return uri


class SnapshotConfig(Config):
    """What is listed when a snapshot is taken."""

    sources: tuple[Source, ...] = Field(min_length=1, description="where documents come from")

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"source names must differ; used twice: {', '.join(twice)}")
        return self


class IngestConfig(Config):
    """How files become records."""

    max_record_bytes: int = Field(8 << 20, gt=0, description="a longer record (decoded bytes) is quarantined")
    max_file_bytes: int = Field(
        64 << 30, gt=0, description="a file that decodes to more is cut there, the rest quarantined"
    )


class GopherConfig(Config):
    """Quality rules of Gopher (arXiv:2112.11446, section A.1.1); each default is the paper's number."""

    min_words: int = Field(50, ge=0, description="fewest words that hold more than symbols")
    max_words: int = Field(100_000, gt=0, description="most words that hold more than symbols")
    min_mean_word_length: float = Field(3.0, ge=0, description="least mean word length, characters")
    max_mean_word_length: float = Field(10.0, gt=0, description="greatest mean word length, characters")
    max_hash_ratio: float = Field(0.1, ge=0, description="most '#' per word")
    max_ellipsis_ratio: float = Field(0.1, ge=0, description="most ellipses per word")
    max_bullet_lines: float = Field(
        0.9, ge=0, le=1, description="greatest fraction of lines that start with a bullet"
    )
    max_ellipsis_lines: float = Field(
        0.3, ge=0, le=1, description="greatest fraction of lines that end in an ellipsis"
    )
    min_alpha_words: float = Field(
        0.8, ge=0, le=1, description="least fraction of words with an alphabetic character"
    )
    min_stop_words: int = Field(2, ge=0, le=8, description="fewest distinct stop words of the paper's eight")


class CleanConfig(Config):
    """Text extraction, repair and quality rules."""

    languages: tuple[str, ...] = Field(
        ("en",), description="language codes to keep; empty keeps every language"
    )
    min_language_score: float = Field(
        0.65, ge=0, le=1, description="least score of the language identifier (FineWeb: 0.65)"
    )
    gopher: GopherConfig = Field(GopherConfig(), description="quality rules of Gopher")

    @field_validator("languages")
    @classmethod
    def _known_languages(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(languages) - LANGUAGES):
            raise ValueError(
                f"unknown language code(s) {', '.join(unknown)}, which no document would have; "
                "codes are those of fastText's lid.176, as en, de, zh"
            )
        return languages


class DedupConfig(Config):
    """Exact and near-duplicate removal, then the held-out split."""

    ngram: int = Field(5, ge=1, description="words a shingle")
    bands: int = Field(14, ge=1, description="bands of the MinHash signature")
    rows: int = Field(8, ge=1, description="rows a band")
    threshold: float = Field(
        0.7, gt=0, le=1, description="least verified Jaccard of shingles to call a near duplicate"
    )
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of the hash functions")
    held_out: float = Field(
        0.05, ge=0, lt=1, description="fraction of surviving documents kept apart for evaluation"
    )


class CorpusGateConfig(Config):
    """The policy that a snapshot must meet before anything is trained on it."""

    min_documents: int = Field(100, ge=0, description="fewest surviving documents")
    min_held_out: int = Field(10, ge=0, description="fewest held-out documents")
    max_quarantined: float = Field(0.05, ge=0, le=1, description="greatest fraction of records quarantined")
    max_dropped: float = Field(
        0.95, ge=0, le=1, description="greatest fraction of records dropped or duplicate"
    )
    max_row_drift: float = Field(
        0.3, ge=0, description="greatest change of document count against the last published"
    )


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


class ShardGateConfig(Config):
    """The policy that shards must meet before they are trained on."""

    min_tokens: int = Field(10_000, ge=0, description="fewest training tokens")
    min_bytes_per_token: float = Field(1.5, gt=0, description="least mean bytes of text a token")


class CorpusConfig(Config):
    """From sources to shards."""

    snapshot: SnapshotConfig = Field(description="where documents come from")
    ingest: IngestConfig = Field(IngestConfig(), description="how files become records")
    clean: CleanConfig = Field(CleanConfig(), description="extraction, repair, quality rules")
    dedup: DedupConfig = Field(DedupConfig(), description="deduplication and the held-out split")
    gate: CorpusGateConfig = Field(CorpusGateConfig(), description="policy for the deduplicated snapshot")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="tokenizer")
    shards: ShardConfig = Field(ShardConfig(), description="token shards")
    shard_gate: ShardGateConfig = Field(ShardGateConfig(), description="policy for the shards")
