"""How training is spread over ranks: bears no identity.

    ranks = data x tensor x pipeline x sequence        expert: within data
    rank  = ((stage * data + replica) * sequence + slice) * tensor + shard

Each legal mesh is proven by loss parity with one process (tests/training/test_parity.py). What is not, or
cannot be, is refused when the config is read, with the reason and the nearest mesh that is legal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from bloomery.config.base import Config, execution
from bloomery.config.training import TrainConfig


class ParallelConfig(Config):
    """How training is spread: bears no identity."""

    ranks: int = execution(2, ge=1, description="processes, one a GPU")
    zero_stage: Literal[0, 1, 2, 3] = execution(
        1, description="what data-parallel ranks share: 1 optimizer, 2 and gradients, 3 and weights"
    )
    tensor: int = execution(1, ge=1, description="ranks that share each matrix (arXiv:1909.08053)")
    pipeline: int = execution(1, ge=1, description="stages that share the layers, 1F1B (arXiv:2104.04473)")
    sequence: int = execution(1, ge=1, description="ranks that share each sequence (arXiv:2309.14509)")
    expert: int = execution(1, ge=1, description="data-parallel ranks that share a layer's experts")
    micro_batch: int = execution(4, ge=1, description="sequences a forward pass of a rank")
    recompute: Literal["none", "selective", "full"] = execution(
        "none", description="activations made again in the backward pass: all but matrix products, or all"
    )
    offload_optimizer: bool = execution(False, description="optimizer state and step on the CPU (ZeRO 1-3)")
    compile: bool = execution(False, description="torch.compile each layer; needs a C++ compiler")
    device: Literal["auto", "cpu", "cuda"] = execution(
        "auto", description="auto takes the GPU when there is one"
    )
    threads: int = execution(1, ge=1, description="CPU threads a rank")
    checkpoint_every: int = execution(50, ge=1, description="steps between checkpoints")
    memory_every: int | None = execution(
        None,
        ge=1,
        description="steps between snapshots in the node's memory, which outlive ranks; none: of checkpoints",
    )
    keep_last: int = execution(3, ge=1, description="newest checkpoints that stay live")
    keep_every: int | None = execution(
        None, ge=1, description="checkpoints of multiples of so many steps stay live, too"
    )
    keep_best: int = execution(0, ge=0, description="checkpoints of the least held-out loss stay live, too")
    layers_every: int = execution(50, ge=1, description="steps between gradient norms of each layer")
    profile: tuple[int, int] | None = execution(
        None, description="first and last step that rank 0 leaves a trace of, beside its logs"
    )
    allow: tuple[Literal["code", "config", "dataset", "graph"], ...] = execution(
        (), description="what may differ from the checkpoint to resume from; recorded in those that follow"
    )
    cache_bytes: int = execution(
        64 << 30,
        ge=1 << 20,
        description="most bytes of shards that a node keeps of a dataset in an object store",
    )

    @field_validator("profile")
    @classmethod
    def _in_order(cls, span: tuple[int, int] | None) -> tuple[int, int] | None:
        if span and not 1 <= span[0] <= span[1]:
            raise ValueError(f"{list(span)}: a first step of at least 1, and a last one not before it")
        return span

    @property
    def data(self) -> int:
        """Replicas of the model, which read different rows."""
        return self.ranks // (self.tensor * self.pipeline * self.sequence)

    @property
    def mesh(self) -> str:
        """The degrees above 1, for people."""
        named = ("data", "tensor", "pipeline", "sequence", "expert")
        parts = [f"{name} {getattr(self, name)}" for name in named if getattr(self, name) > 1]
        offload = ", optimizer on the CPU" if self.offload_optimizer else ""
        return f"{' x '.join(parts) or 'one rank'}, ZeRO-{self.zero_stage}{offload}"


def check_retention(train: TrainConfig, parallel: ParallelConfig) -> None:
    """Refuses to keep the best of checkpoints that are not measured.

    Raises:
        ValueError: names both intervals.
    """
    if parallel.keep_best and parallel.checkpoint_every % train.held_out_every:
        raise ValueError(
            f"execution.parallelism.keep_best needs a held-out loss at each checkpoint: checkpoint_every "
            f"{parallel.checkpoint_every} is not a multiple of train.held_out_every {train.held_out_every}"
        )


def refusals(train: TrainConfig, parallel: ParallelConfig) -> list[str]:
    """Why a mesh cannot train a model, or is not proven to; empty if it can."""
    return list(_reasons(train, parallel))


def _reasons(train: TrainConfig, parallel: ParallelConfig) -> Iterator[str]:
    yield from _layout(train, parallel)
    yield from _sizes(train, parallel)
    yield from _products(train, parallel)


def _layout(train: TrainConfig, parallel: ParallelConfig) -> Iterator[str]:
    tensor, pipeline, sequence, expert = (
        getattr(parallel, name) for name in ("tensor", "pipeline", "sequence", "expert")
    )
    zero = parallel.zero_stage
    if parallel.ranks % (tensor * pipeline * sequence):
        yield (
            f"ranks {parallel.ranks} is not a multiple of tensor {tensor} x pipeline {pipeline} x "
            f"sequence {sequence}"
        )
    if pipeline > 1 and zero == 0:
        yield "pipeline with zero_stage 0 clips by a norm that leaves stages out"
    if pipeline > 1 and zero > 1:
        yield f"pipeline with zero_stage {zero}: a stage cannot give gradients or weights away"
    if zero == 0 and train.dtype != "fp32":
        yield f"zero_stage 0 in {train.dtype} keeps no fp32 masters"
    if zero == 0 and parallel.offload_optimizer:
        yield "offload_optimizer with zero_stage 0: there is nothing to offload"
    if sequence > 1 and (tensor > 1 or pipeline > 1):
        yield "sequence together with tensor or pipeline is not proven"
    if expert > 1 and (tensor > 1 or pipeline > 1 or sequence > 1):
        yield "expert together with tensor, pipeline or sequence is not proven"
    if expert > 1 and zero not in (1, 2):
        yield f"expert with zero_stage {zero} is not proven"
    if train.optimizer == "muon" and (tensor > 1 or zero == 3 or parallel.offload_optimizer):
        yield "train.optimizer muon needs whole matrices: without tensor, zero_stage 3 and offload_optimizer"
    if tensor > 1 and train.model.moe:
        yield "tensor with experts (train.model.moe) is not proven"


def _sizes(train: TrainConfig, parallel: ParallelConfig) -> Iterator[str]:
    model, moe = train.model, train.model.moe
    lengths = [train.sequence_length, *(ramp.value for ramp in train.schedule.length)]
    for name in ("tensor", "sequence"):
        degree = getattr(parallel, name)
        for what, size in (("heads", model.heads), ("kv_heads", model.kv_heads)):
            if size % degree:
                yield f"train.model.{what} {size} is not a multiple of {name} {degree}"
        for length in lengths:
            if length % degree:
                yield f"sequences of {length} tokens are not a multiple of {name} {degree}"
    if model.layers % parallel.pipeline:
        yield f"train.model.layers {model.layers} is not a multiple of pipeline {parallel.pipeline}"
    if parallel.expert > 1 and moe is None:
        yield f"expert {parallel.expert}, but train.model.moe is none"
    if moe and moe.experts % parallel.expert:
        yield f"train.model.moe.experts {moe.experts} is not a multiple of expert {parallel.expert}"
    if parallel.data % parallel.expert:
        yield f"data {parallel.data} is not a multiple of expert {parallel.expert}"


def _products(train: TrainConfig, parallel: ParallelConfig) -> Iterator[str]:
    """Sizes that fp8 products must have multiples of 16 of."""
    model, tensor = train.model, parallel.tensor
    sizes = {
        "train.model.width": model.width,
        f"train.model.ffn_width / tensor {tensor}": model.ffn_width / tensor,
        f"train.model's heads x head width / tensor {tensor}": model.heads * model.head / tensor,
        f"train.model's kv_heads x head width / tensor {tensor}": model.kv_heads * model.head / tensor,
    }
    for length in (train.sequence_length, *(ramp.value for ramp in train.schedule.length)):
        sizes[f"a micro-batch of {length} tokens"] = parallel.micro_batch * length / parallel.sequence
    if train.dtype == "fp8":
        yield from (
            f"{name} is {size:g}: fp8 needs a multiple of 16" for name, size in sizes.items() if size % 16
        )


def legal_meshes(train: TrainConfig, parallel: ParallelConfig) -> Iterator[ParallelConfig]:
    """Every legal mesh of as many ranks, all else being as it is."""
    ranks = parallel.ranks
    degrees = [size for size in range(1, ranks + 1) if ranks % size == 0]
    experts = degrees if train.model.moe else [1]
    for tensor, pipeline, sequence in itertools.product(degrees, repeat=3):
        if ranks % (tensor * pipeline * sequence):
            continue
        for expert, zero in itertools.product(experts, (0, 1, 2, 3)):
            sizes = {"tensor": tensor, "pipeline": pipeline, "sequence": sequence, "expert": expert}
            mesh = parallel.model_copy(update={**sizes, "zero_stage": zero})
            if next(_reasons(train, mesh), None) is None:
                yield mesh


def nearest(train: TrainConfig, parallel: ParallelConfig) -> ParallelConfig | None:
    """The legal mesh of as many ranks that differs least, without offload at worst; None if there is none."""

    def distance(other: ParallelConfig) -> float:
        names = ("tensor", "pipeline", "sequence", "expert")
        apart = sum(abs(math.log2(getattr(other, name) / getattr(parallel, name))) for name in names)
        return apart + abs(other.zero_stage - parallel.zero_stage) / 8

    found = min(legal_meshes(train, parallel), key=distance, default=None)
    if found is None and parallel.offload_optimizer:
        return nearest(train, parallel.model_copy(update={"offload_optimizer": False}))
    return found


def check_mesh(train: TrainConfig, parallel: ParallelConfig) -> None:
    """Refuses a mesh that is illegal for a model, or not proven.

    Raises:
        ValueError: each reason, and the nearest legal mesh.
    """
    reasons = refusals(train, parallel)
    if reasons:
        other = nearest(train, parallel)
        legal = f"the nearest legal mesh is {other.mesh}" if other else "no mesh of so many ranks is legal"
        raise ValueError(f"execution.parallelism: {'; '.join(reasons)}; {legal}")
