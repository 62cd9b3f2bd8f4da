"""DeepSpeed behind one face, so that the loop is the same on every mesh.

    micro-batches -> forward, backward, reduced over replicas -> square sums of gradients -> scaled, step
                                                                                         or discarded

A pipeline runs DeepSpeed's 1F1B schedule up to its optimizer step, which the loop takes, or not, as with any
other mesh. DeepSpeed averages over replicas; each loss is weighed so that the gradient is of the mean over
all targets of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import TrainConfig
from training import gradients
from training.fp8 import use_fp8
from training.mesh import Mesh
from training.model import Decoder
from training.moe import MixtureOfExperts
from training.optim import optimizer
from training.parallel import deepspeed_config


class Rows(NamedTuple):
    """A micro-batch."""

    inputs: Tensor
    """[B, T]"""
    positions: Tensor
    """Of each input in its document: [B, T]."""
    targets: Tensor
    """[B, T]"""


@dataclass
class Engine:
    """One rank's part of the model, and what trains it."""

    train: TrainConfig
    parallel: ParallelConfig
    mesh: Mesh
    model: Decoder
    deepspeed: Any
    """DeepSpeed's engine."""
    nats: list[Tensor] = field(default_factory=list)
    """Summed losses of the micro-batches of a step that this rank answers for."""
    weight: float = 0.0
    """What a target's loss is multiplied by."""
    shape: tuple[int, ...] = ()
    """Of the last micro-batch that went through the pipeline."""

    @classmethod
    def start(cls, train: TrainConfig, parallel: ParallelConfig, vocab_size: int) -> Engine:
        """Builds the model with fresh weights; the process group stands (training/parallel.py)."""
        import deepspeed

        if train.deterministic:
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        mesh, config = Mesh.of(parallel), deepspeed_config(train, parallel)
        if parallel.zero_stage == 3:  # no rank ever has the model whole
            dtype = torch.float32 if train.dtype == "fp32" else torch.bfloat16
            apart = deepspeed.zero.Init(data_parallel_group=mesh.replicas, mem_efficient_linear=False)
            apart.dtype = dtype  # its argument is not heeded where the machine has no fp16: bf16, in silence
            with apart:
                model = Decoder(train.model, vocab_size, mesh, parallel.recompute)
            model.initialise(train.seed, lambda w: deepspeed.zero.GatheredParameters([w], modifier_rank=0))
        else:
            model = Decoder(train.model, vocab_size, mesh, parallel.recompute)
            model.initialise(train.seed)
        if train.dtype == "fp8":
            use_fp8(model.layers)
        if parallel.compile:
            for layer in model.layers.values():
                layer.compile()
        for weight in model.parameters():  # for a norm of DeepSpeed's own, which it cannot take of none
            vars(weight).update(model_parallel=True)
        torch.manual_seed(train.seed)
        engine = cls(train, parallel, mesh, model, None)
        module: nn.Module = model
        if parallel.pipeline > 1:
            module = engine._pipeline()
        elif parallel.expert > 1:
            _announce_experts(model)
        engine.deepspeed = deepspeed.initialize(
            model=module,
            optimizer=optimizer(model.places(), train),
            config=config,
            mpu=None if parallel.pipeline > 1 else mesh.mpu,  # a pipeline has its own
        )[0]
        return engine

    def _pipeline(self) -> nn.Module:
        from deepspeed.pipe import LayerSpec, PipelineModule

        class Pipeline(PipelineModule):  # type: ignore[misc]
            """Whose tied embedding is ours."""

            def get_tied_weights_and_groups(module) -> list[tuple[Tensor, Any]]:  # noqa: N805
                both = self.train.model.tied_embeddings and self.mesh.tied
                return [(self.model.embedding.weight, self.mesh.tied)] if both else []

        return Pipeline(
            [LayerSpec(Stage, self.model)] * self.parallel.pipeline,
            topology=self.mesh.mpu.topology(),
            loss_fn=self._loss,
            partition_method="uniform",
        )

    @property
    def averaged(self) -> int:
        """By how many ranks DeepSpeed divides a gradient's sum: with ZeRO-3 by those of a sequence, too."""
        return self.parallel.data * (self.parallel.sequence if self.parallel.zero_stage == 3 else 1)

    def forward_backward(self, rows: Sequence[Rows], targets: int) -> float:
        """Makes the gradient of the mean loss of a step, and reduces it.

        Args:
            rows: micro-batches, as many on every rank.
            targets: of the step, over all ranks.

        Returns:
            The sum of the losses in nats that this rank answers for.
        """
        self.weight, self.nats = self.averaged / max(1, targets), []
        if moe := self.train.model.moe:
            share = self.averaged / self.parallel.data / len(rows)
            self.model.weigh_balance(moe.balance_weight * share)
        self.deepspeed.train()
        if self.parallel.pipeline > 1:
            self._run_pipeline(_up_to_the_step(self.deepspeed, len(rows)), rows)
        else:
            for number, micro_batch in enumerate(rows, 1):
                self.deepspeed.set_gradient_accumulation_boundary(number == len(rows))
                inputs, positions, own = self._on_device(micro_batch)
                self.deepspeed.backward(self._loss(self.deepspeed(inputs, positions), own))
        return self._nats()

    @torch.no_grad()
    def losses(self, rows: Sequence[Rows]) -> float:
        """The sum of the losses in nats that this rank answers for; the model stays as it is."""
        self.nats = []
        self.deepspeed.eval()
        if self.parallel.pipeline > 1:
            self._run_pipeline(self.deepspeed._inference_schedule(len(rows)), rows)
        else:
            for micro_batch in rows:
                inputs, positions, own = self._on_device(micro_batch)
                self._loss(self.deepspeed(inputs, positions), own)
        return self._nats()

    def _on_device(self, rows: Rows) -> Rows:
        return Rows(*(part.to(self.deepspeed.device) for part in rows))

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = self.model.losses(logits, targets).sum()
        if self.mesh.tensor.rank == 0:
            self.nats.append(loss.detach().double())
        if self.train.z_loss:
            loss = loss + self.train.z_loss * self.model.z_losses(logits, targets).sum()
        return loss * self.weight

    def _nats(self) -> float:
        return float(torch.stack(self.nats).sum()) if self.nats else 0.0

    def _run_pipeline(self, schedule: Any, rows: Sequence[Rows]) -> None:
        engine = self.deepspeed
        if rows[0].inputs.shape != self.shape:
            engine.reset_activation_shape()
            self.shape = rows[0].inputs.shape
        batches = (((r.inputs, r.positions), r.targets) for r in rows)
        engine.set_dataiterator(batches)
        engine.total_loss, engine._compute_loss = None, True
        engine._exec_schedule(schedule)

    def square_sums(self) -> dict[str, float]:
        """Sum of squares of this rank's share of each weight's gradient: over all ranks of the whole."""
        replicas = self.parallel.data * self.parallel.sequence if self.parallel.zero_stage == 0 else 1
        return gradients.square_sums(self.deepspeed, self.model, replicas)

    def step(self, rate: float, norm: float) -> None:
        """Takes the step, its gradient clipped.

        Args:
            rate: learning rate.
            norm: of the gradient, over all ranks.
        """
        if norm > self.train.clip:
            gradients.scale(self.deepspeed, self.train.clip / (norm + 1e-6))
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        if self.parallel.pipeline > 1:
            self.deepspeed._exec_optimizer_step()
        else:
            self.deepspeed.step()
        self.model.follow_loads(self.mesh.replicas)

    def discard(self) -> None:
        """Does not take the step."""
        self.model.follow_loads(taken=False)
        gradients.discard(self.deepspeed)


class Stage(nn.Module):
    """A stage of the pipeline: (ids or activations, positions) -> the same of the next, or logits."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | Tensor:
        """Positions go along: the stages between have no batch."""
        out: Tensor = self.model(*inputs)
        return out if self.model.mesh.last else (out, inputs[1])


def _up_to_the_step(engine: Any, micro_batches: int) -> Any:
    """DeepSpeed's 1F1B schedule without the optimizer's step."""
    from deepspeed.runtime.pipe.schedule import OptimizerStep, TrainSchedule

    class UpToTheStep(TrainSchedule):  # type: ignore[misc]
        """The loop takes the step itself."""

        def steps(self) -> Iterator[list[Any]]:
            for commands in super().steps():
                yield [command for command in commands if not isinstance(command, OptimizerStep)]

    return UpToTheStep(micro_batches=micro_batches, stages=engine.num_stages, stage_id=engine.stage_id)


def _announce_experts(model: Decoder) -> None:
    """Has DeepSpeed see layers whose experts are spread, for which it looks by the class of its own."""
    from deepspeed.moe.layer import MoE

    class Announced(MoE):  # type: ignore[misc]
        """Says how many experts a layer has."""

        def __init__(self, experts: int) -> None:
            nn.Module.__init__(self)
            self.num_experts = experts

        def set_deepspeed_parallelism(self, use_data_before_expert_parallel_: bool = False) -> None:
            """The groups stand already (training/mesh.py)."""

    for module in list(model.modules()):
        if isinstance(module, MixtureOfExperts):
            module.add_module("announced", Announced(module.moe.experts))
