"""The knobs of evaluation and release."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bloomery.config.base import Config, execution


class EvaluateConfig(Config):
    """What a checkpoint is measured on."""

    max_tokens: int = Field(65_536, ge=256, description="most held-out tokens to score")
    sample_prompt: str = Field("The", description="prompt of the generated sample")
    sample_tokens: int = Field(48, ge=0, description="tokens to generate for the sample")


class ExportConfig(Config):
    """What a released model is made of."""

    dtype: Literal["fp32", "bf16"] = Field("fp32", description="dtype of the released weights")


class ReleaseConfig(Config):
    """When a candidate becomes the champion."""

    export: ExportConfig = Field(ExportConfig(), description="what a released model is made of")

    min_improvement: float = Field(0.0, ge=0, description="least drop of bits per byte against the champion")
    max_bits_per_byte: float | None = Field(None, gt=0, description="a worse candidate is never released")
    auto_approve: bool = execution(False, description="release without a person; the demo alone may say so")
    approvers: tuple[str, ...] = execution(
        (), description="Airflow users who may approve; empty: any who may edit the DAG run"
    )
