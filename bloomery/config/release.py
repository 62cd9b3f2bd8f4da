"""The knobs of evaluation and release."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from bloomery.config.base import Config, execution

Weights = Literal["trained", "average"]


class EvaluateConfig(Config):
    """What a checkpoint is measured on."""

    max_tokens: int = Field(65_536, ge=256, description="most held-out tokens to score")
    sample_prompt: str = Field("The", description="prompt of the generated sample")
    sample_tokens: int = Field(48, ge=0, description="tokens to generate for the sample")
    weights: Weights = Field("trained", description="average: those of train.ema")


class ExportConfig(Config):
    """What a released model is made of."""

    dtype: Literal["fp32", "bf16"] = Field("fp32", description="dtype of the released weights")
    weights: Weights = Field("trained", description="average: those of train.ema")


class ReleaseConfig(Config):
    """When a candidate becomes the champion."""

    export: ExportConfig | None = Field(
        ExportConfig(), description="what a released model is made of; none: nothing is released"
    )

    min_improvement: float = Field(0.0, ge=0, description="least drop of bits per byte against the champion")
    max_bits_per_byte: float | None = Field(None, gt=0, description="a worse candidate is never released")
    auto_approve: bool = execution(False, description="release without a person; the demo alone may say so")
    approvers: tuple[str, ...] = execution(
        (), description="Airflow users who may approve; empty: any who may edit the DAG run"
    )

    @field_validator("export", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return None if value == "none" else value
