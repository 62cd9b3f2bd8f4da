"""The policies of the gates: what a snapshot and its shards must meet before anything is trained on them."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from bloomery.config.base import Config


class Limits(Config):
    """Greatest values of a figure, inclusive: beyond `warn` it needs a waiver to be released, beyond `block`
    nothing is trained on it."""

    warn: float | None = Field(None, ge=0, description="a greater value is a warning; none never warns")
    block: float | None = Field(None, ge=0, description="a greater value blocks; none never blocks")

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        if self.warn is not None and self.block is not None and self.warn > self.block:
            raise ValueError(f"warn {self.warn:g} is more than block {self.block:g}, which would hide it")
        return self


def limits(warn: float | None, block: float | None, description: str) -> Limits:
    """A field of Limits with these defaults."""
    default: Limits = Field(Limits(warn=warn, block=block), description=description)
    return default


class DriftConfig(Config):
    """How far a snapshot may be from the last published one."""

    documents: Limits = limits(0.1, 0.3, "relative change of the number of documents")
    bytes: Limits = limits(0.1, 0.3, "relative change of the bytes of text")
    psi: Limits = limits(
        0.1, 0.25, "greatest population stability index of a numeric column, less what chance explains"
    )
    sources: Limits = limits(
        0.01, 0.05, "Jensen-Shannon divergence of the mix of sources, bits, less what chance explains"
    )
    languages: Limits = limits(0.01, 0.05, "the same of languages")
    rules: Limits = limits(0.01, 0.05, "the same of what became of records: kept, or the rule that took them")
    nulls: Limits = limits(
        0.01, 0.05, "greatest change of a column's fraction of nulls, less what chance explains"
    )
    vanished: Limits = limits(0, 0, "sources with documents in the published snapshot and none now")


class CorpusGateConfig(Config):
    """The policy that a snapshot must meet before anything is trained on it."""

    min_documents: int = Field(100, ge=0, description="fewest surviving documents")
    min_held_out: int = Field(10, ge=0, description="fewest held-out documents")
    quarantined: Limits = limits(0.01, 0.05, "fraction of records quarantined")
    dropped: Limits = limits(None, 0.95, "fraction of records dropped, duplicate or contaminated")
    repeated: Limits = limits(0, 0.001, "fraction of survivors whose text another survivor has, too")
    short: Limits = limits(0.05, 0.25, "fraction of survivors of fewer than 128 characters")
    no_language: Limits = limits(0.01, 0.05, "fraction of survivors without a language")
    mojibake: Limits = limits(0.01, 0.03, "fraction of survivors with marks of a wrong encoding")
    pii: Limits = limits(0, 0.005, "fraction of survivors that hold personal data")
    contaminated: Limits = limits(0, 0, "survivors that hold an item of an eval set")
    drift: DriftConfig = Field(DriftConfig(), description="against the last published snapshot")


class ShardGateConfig(Config):
    """The policy that shards must meet before they are trained on."""

    min_tokens: int = Field(10_000, ge=0, description="fewest training tokens")
    min_bytes_per_token: float = Field(1.5, gt=0, description="least mean bytes of text a token")
