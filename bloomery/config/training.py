"""The compute plane's knobs: model, optimisation, schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bloomery.config.base import Config
from bloomery.config.model import ModelConfig


class WeightsConfig(Config):
    """Weights of the sources from a step on, in place of those before."""

    from_step: int = Field(ge=0, description="step at which the weights begin to change")
    weights: dict[str, float] = Field(description="share of each source, relative to the others'")
    over_steps: int = Field(0, ge=0, description="steps that the way to them takes; 0 is at once")
    curve: Literal["linear", "cosine"] = Field("linear", description="of that way")


class RampConfig(Config):
    """A value that holds until a step."""

    until_step: int = Field(ge=1, description="first step at which it does not hold any more")
    value: int = Field(ge=1, description="sequences a step, or tokens a sequence")


class ScheduleConfig(Config):
    """What a run reads, step by step."""

    mixture: tuple[WeightsConfig, ...] = Field(
        (), description="weights of the sources by step; none: those of corpus.mixture throughout"
    )
    batch: tuple[RampConfig, ...] = Field((), description="sequences a step before it is train.global_batch")
    length: tuple[RampConfig, ...] = Field(
        (),
        description="tokens a sequence before it is train.sequence_length; divisors of it",
    )
    packing: Literal["concat", "best_fit"] = Field(
        "concat", description="documents one after the other, or whole ones in bins (arXiv:2404.10830)"
    )
    documents: int = Field(64, ge=1, description="most documents of a bin")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name, steps in (
            ("mixture", [0, *(entry.from_step + 1 for entry in self.mixture)]),
            ("batch", [0, *(entry.until_step for entry in self.batch)]),
            ("length", [0, *(entry.until_step for entry in self.length)]),
        ):
            if any(b <= a for a, b in pairwise(steps)):
                raise ValueError(f"the steps of schedule.{name} must rise")
        for entry in self.mixture:
            if any(weight < 0 for weight in entry.weights.values()) or not sum(entry.weights.values()):
                raise ValueError(f"weights {entry.weights}: each at least 0, one of them above")
        return self


class InitConfig(Config):
    """What a run begins with, in place of fresh weights."""

    checkpoint: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="manifest of a checkpoint of another run, or of an import (`bloomery import`)",
    )
    optimizer: bool = Field(False, description="with its optimizer state")
    loader: bool = Field(
        False, description="at its step, of the same data: a fork of its run; else at step 0"
    )


class GuardsConfig(Config):
    """What is done about a step that would harm the model."""

    skips: int = Field(
        5,
        ge=0,
        description="most steps in a row that are passed over for a loss or gradient that is not finite",
    )
    spike: Literal["log", "skip", "rewind"] = Field(
        "log",
        description="a loss far above those before: log it, pass over its batch, or go back and pass over "
        "the batches before it, too",
    )
    sigmas: float = Field(6.0, gt=0, description="standard deviations above the mean that make a spike")
    window: int = Field(128, ge=8, description="losses that mean and deviation are taken of")
    rewind_steps: int = Field(
        8, ge=0, description="rewind: batches before the spike that are passed over with it"
    )
    rewinds: int = Field(4, ge=0, description="most times that a run goes back before it ends")


Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Config):
    """What is trained, on how much, and how it is optimised."""

    model: ModelConfig = Field(ModelConfig(), description="model: its shape, or the name of a preset")
    init_from: InitConfig | None = Field(None, description="what the run begins with; none: fresh weights")
    sequence_length: int = Field(256, ge=8, description="tokens a sequence")
    global_batch: int = Field(8, ge=1, description="sequences a step over all ranks")
    steps: int | None = Field(
        200, ge=1, description="optimizer steps; none: until the token budget of corpus.mixture is read"
    )
    schedule: ScheduleConfig = Field(ScheduleConfig(), description="mixture, ramps and packing")
    learning_rate: float = Field(2e-3, gt=0, description="peak learning rate")
    warmup_steps: int = Field(20, ge=0, description="steps of linear warm-up")
    min_learning_rate: float = Field(2e-4, ge=0, description="learning rate at the end")
    decay: Literal["cosine", "linear", "wsd"] = Field(
        "cosine", description="how it falls after warm-up; wsd stays, then falls linearly"
    )
    decay_share: float = Field(0.1, gt=0, le=1, description="wsd: share of the run in which it falls")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: of the matrices in layers (arXiv:2502.16982); of the rest AdamW"
    )
    weight_decay: float = Field(0.1, ge=0, description="weight decay of matrices, times the learning rate")
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), description="AdamW betas")
    muon_momentum: float = Field(0.95, ge=0, lt=1, description="momentum of Muon (Nesterov)")
    ema: float | None = Field(
        None, gt=0, lt=1, description="decay of an average of the weights, kept beside them; none: no average"
    )
    clip: float = Field(1.0, gt=0, description="greatest global gradient norm")
    z_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the squared log of the softmax's normaliser (arXiv:2204.02311: 1e-4)",
    )
    guards: GuardsConfig = Field(GuardsConfig(), description="what is done about a step that would do harm")
    dtype: Literal["fp32", "bf16", "fp8"] = Field(
        "fp32",
        description="compute dtype; masters are fp32. fp8: the layers' products, the rest bf16; needs Hopper",
    )
    deterministic: bool = Field(
        False, description="only kernels that give the same bits each time; slower, of use on a GPU"
    )
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of initial weights and order of samples")
    held_out_every: int = Field(50, ge=1, description="steps between held-out losses")
    held_out_sequences: int = Field(32, ge=1, description="sequences of a held-out loss while training")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.steps is not None and self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate {self.min_learning_rate:g} is above learning_rate {self.learning_rate:g}"
            )
        if self.optimizer == "muon" and self.model.scaling == "mup":
            raise ValueError("model.scaling mup has learning rates for AdamW, not for optimizer muon")
        for entry in self.schedule.length:
            if self.sequence_length % entry.value:
                raise ValueError(
                    f"schedule.length {entry.value} does not divide sequence_length {self.sequence_length}"
                )
        return self
