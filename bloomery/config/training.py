"""The compute plane's knobs: model, optimisation, schedule, and (execution-only) how it is spread."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bloomery.config.base import Config, execution
from bloomery.config.model import ModelConfig


class TrainConfig(Config):
    """What is trained, on how much, and how it is optimised."""

    model: ModelConfig = Field(ModelConfig(), description="model: its shape, or the name of a preset")
    sequence_length: int = Field(256, ge=8, description="tokens a sequence")
    global_batch: int = Field(8, ge=1, description="sequences a step over all ranks")
    steps: int = Field(200, ge=1, description="optimizer steps")
    learning_rate: float = Field(2e-3, gt=0, description="peak learning rate")
    warmup_steps: int = Field(20, ge=0, description="steps of linear warm-up")
    min_learning_rate: float = Field(2e-4, ge=0, description="learning rate at the end of the cosine")
    weight_decay: float = Field(0.1, ge=0, description="AdamW weight decay of matrices")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW betas")
    clip: float = Field(1.0, gt=0, description="greatest global gradient norm")
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="compute dtype; masters are fp32")
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of initial weights and order of samples")
    held_out_every: int = Field(50, ge=1, description="steps between held-out losses")
    held_out_sequences: int = Field(32, ge=1, description="sequences of a held-out loss while training")

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        return self


class ParallelConfig(Config):
    """How training is spread: bears no identity."""

    ranks: int = execution(2, ge=1, description="processes on this node")
    zero_stage: Literal[1] = execution(1, description="ZeRO stage")
    micro_batch: int = execution(4, ge=1, description="sequences a forward pass of a rank")
    device: Literal["auto", "cpu", "cuda"] = execution(
        "auto", description="auto takes the GPU when there is one"
    )
    threads: int = execution(1, ge=1, description="CPU threads a rank")
    checkpoint_every: int = execution(50, ge=1, description="steps between checkpoints")
    keep_last: int = execution(3, ge=1, description="checkpoints that stay live")
