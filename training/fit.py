"""Whether a run fits into memory, foretold before a rank starts, and the mesh that would.

bytes a rank = weights + gradients + masters and moments + activations + logits
"""

from __future__ import annotations

import itertools
import os
import subprocess
from typing import NamedTuple

from bloomery.config.parallel import ParallelConfig, legal_meshes, refusals
from bloomery.config.training import TrainConfig
from training.job import TrainingError
from training.size import Size, activation_bytes

SPARE = 0.9
"""Share of a device's memory that a run may take: the rest is the allocator's and the collectives'."""


FP8 = 9.0
"""Compute capability from which a GPU multiplies in fp8."""


class Need(NamedTuple):
    """Bytes of the rank that needs most."""

    weights: float
    gradients: float
    optimizer: float
    """fp32 masters, where the weights are not those, and moments; on the host if they are offloaded."""
    activations: float
    """Of the micro-batches that are under way."""
    logits: float

    @property
    def device(self) -> float:
        """All that stands on the device, but for an offloaded optimizer."""
        return sum(self)

    def __str__(self) -> str:
        parts = (f"{name} {_gib(size)}" for name, size in self._asdict().items() if size)
        return f"{_gib(self.device)} ({', '.join(parts)})"


def need(train: TrainConfig, parallel: ParallelConfig, vocab_size: int) -> Need:
    """What a rank needs: ZeRO as arXiv:1910.02054, activations as arXiv:2205.05198, section 4."""
    model, spread = train.model, parallel.tensor * parallel.pipeline
    size = Size.of(model, vocab_size)
    table = vocab_size * model.width / parallel.tensor  # the first stage has one, or the last
    experts = 0.0
    if model.moe:
        sparse = sum(model.is_sparse(layer) for layer in range(model.layers))
        experts = 3.0 * model.width * model.moe.ffn_width * model.moe.experts * sparse
    dense = (size.total - size.embedding - experts) / spread
    dense += table if parallel.pipeline > 1 else size.embedding / parallel.tensor
    experts /= spread * parallel.expert
    low = 4 if train.dtype == "fp32" else 2
    zero, shares = parallel.zero_stage, parallel.data * parallel.sequence
    masters = 12 if zero else 8  # ZeRO keeps masters beside the weights in fp32, too
    masters += 4 if train.ema else 0
    accumulated = 4 + (low if low == 2 and zero == 1 else 0)

    def own(stage: int) -> float:
        """Parameters of which a rank keeps what ZeRO shares from a stage on; experts have fewer replicas."""
        if zero < stage:
            return dense + experts
        return dense / shares + experts / (shares / parallel.expert)

    under_way = parallel.pipeline  # 1F1B: the first stage has that many
    rows, split = parallel.micro_batch * under_way, spread * parallel.sequence
    activations = activation_bytes(model, train.sequence_length, parallel.recompute) * low / 2
    tokens = parallel.micro_batch * train.sequence_length / parallel.sequence
    return Need(
        weights=low * own(3),
        gradients=accumulated * own(2),
        optimizer=0.0 if parallel.offload_optimizer else masters * own(1),
        activations=rows * activations / split,
        logits=tokens * vocab_size / parallel.tensor * (2 * low + 8),
    )


def check_memory(train: TrainConfig, parallel: ParallelConfig, vocab_size: int, device: str) -> None:
    """Refuses a run that will not fit.

    Raises:
        TrainingError: what it needs, what there is, and a mesh of as many ranks that fits.
    """
    there = device_bytes(device, parallel.ranks)
    needed = need(train, parallel, vocab_size)
    if needed.device <= SPARE * there:
        return
    other = fitting(train, parallel, vocab_size, SPARE * there)
    raise TrainingError(
        f"a rank needs {needed}, and has {_gib(there)}: it does not fit",
        f"set execution.parallelism to {_changes(parallel, other)}"
        if other
        else "no mesh of so many ranks fits: take more of them, or a smaller train.model",
    )


def fitting(
    train: TrainConfig, parallel: ParallelConfig, vocab_size: int, room: float
) -> ParallelConfig | None:
    """The mesh of as many ranks that fits and changes least; None if none does."""
    batches = [size for size in range(parallel.micro_batch, 0, -1) if parallel.micro_batch % size == 0]
    recomputed = ("none", "selective", "full")
    found: list[ParallelConfig] = []
    for mesh in legal_meshes(train, parallel):
        for batch, recompute, offload in itertools.product(batches, recomputed, (False, True)):
            other = mesh.model_copy(
                update={"micro_batch": batch, "recompute": recompute, "offload_optimizer": offload}
            )
            if need(train, other, vocab_size).device <= room and not refusals(train, other):
                found.append(other)
    # what costs least speed: no offload before all, then few changes, then little that is recomputed
    return min(
        found,
        key=lambda mesh: (
            mesh.offload_optimizer,
            len(_differ(parallel, mesh)),
            mesh.tensor * mesh.pipeline * mesh.sequence,
            recomputed.index(mesh.recompute),
            abs(mesh.zero_stage - parallel.zero_stage),
            -mesh.micro_batch,
        ),
        default=None,
    )


def _differ(one: ParallelConfig, other: ParallelConfig) -> dict[str, object]:
    return {name: value for name, value in other if value != getattr(one, name)}


def _changes(one: ParallelConfig, other: ParallelConfig) -> str:
    return ", ".join(f"{name}: {value}" for name, value in _differ(one, other).items())


def check_fp8(train: TrainConfig, device: str) -> None:
    """Refuses fp8 where no GPU multiplies in it.

    Raises:
        TrainingError: what it needs, and what there is.
    """
    if train.dtype != "fp8":
        return
    least = min(map(float, _gpu("compute_cap"))) if device == "cuda" else 0.0
    if least < FP8:
        there = f"one of {least}" if least else "no GPU"
        raise TrainingError(
            f"train.dtype fp8 needs a GPU of compute capability {FP8} or more (Hopper), there is {there}",
            "set train.dtype to bf16",
        )


def _gpu(what: str) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()


def device_bytes(device: str, ranks: int) -> float:
    """Memory of a rank: its GPU's, or its share of the machine's."""
    if device == "cuda":
        return min(map(float, _gpu("memory.total"))) * 2**20
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / ranks


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB"
