"""The gradients of a step, where DeepSpeed keeps them until its optimizer takes them.

    backward -> each rank's share, reduced over replicas -> norm over all ranks, once each -> scaled -> step

DeepSpeed's own clipping is off: its norm leaves stages out with ZeRO-0, averages the experts', and what it
does with a gradient that is not finite depends on the stage. Here one pass measures it before any weight is
touched, the same on every mesh. Names are those of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from training.model import Decoder


def shares(engine: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter of which this rank has gradients to step with, and those, flat, as they are kept."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 0:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter, parameter.grad.view(-1)
    elif hasattr(optimizer, "fp32_groups_gradient_flat_partition"):  # BF16_Optimizer
        yield from _mapped(engine, optimizer.fp32_groups_gradient_flat_partition)
    elif stage < 3 and optimizer.cpu_offload:
        yield from _mapped(engine, [flat.grad for flat in optimizer.single_partition_of_fp32_groups])
    elif stage < 3:
        for number, parameters in enumerate(optimizer.params_in_partition):
            kept = (g for g in optimizer.averaged_gradients[number] if not getattr(g, "_zero_padding", False))
            yield from ((p, g.view(-1)) for p, g in zip(parameters, kept, strict=True))
    elif optimizer.offload_optimizer:
        for parameters, flat in zip(
            optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True
        ):
            sizes = [parameter.partition_numel() for parameter in parameters]
            yield from zip(parameters, flat.grad.split(sizes), strict=True)
    else:
        for number, parameters in enumerate(optimizer.fp16_groups):
            kept = (gradient.view(-1) for gradient in optimizer.averaged_gradients[number])
            yield from zip(parameters, kept, strict=True)


def _mapped(engine: Any, flats: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for parameter in engine.module.parameters():
        if (owned := parameter._hp_mapping) is not None:
            at = owned.hp_fragment_address
            yield parameter, flats[owned.param_group_index].narrow(0, at.start, at.numel)


def square_sums(engine: Any, model: Decoder, replicas: int) -> dict[str, float]:
    """Sum of squares of this rank's share of each weight's gradient; over all ranks they add up to the norm.

    Args:
        engine: DeepSpeed's.
        model: the rank's part.
        replicas: ranks that all have a gradient whole (ZeRO-0), else 1.
    """
    names = {id(weight): (name, place.copy) for name, weight, place in model.places()}
    found: dict[str, Tensor] = {}
    for parameter, gradient in shares(engine):
        name, copy = names[id(parameter)]
        if not copy:
            found[name] = torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
    if not found:
        return {}
    values = torch.stack(list(found.values())).double().div(replicas).tolist()
    return dict(zip(found, values, strict=True))


def scale(engine: Any, factor: float) -> None:
    """Multiplies all gradients."""
    with torch.no_grad():
        for _, gradient in shares(engine):
            gradient.mul_(factor)


def discard(engine: Any) -> None:
    """Forgets the gradients of a step that is not taken."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if hasattr(optimizer, "clear_hp_grads"):  # BF16_Optimizer
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads()
    elif stage == 3:
        optimizer._pre_step()
        optimizer._overflow_clean_up(1.0)
    elif stage:
        optimizer.micro_step_id = -1
        optimizer.zero_grad(set_to_none=True)
        if optimizer.cpu_offload:
            optimizer.reset_cpu_buffers()
        for number in list(optimizer.averaged_gradients):
            optimizer.averaged_gradients[number] = optimizer.all_grad_tensors[number] = None
    else:
        engine.zero_grad()
