"""What this rank holds of each parameter: master, optimizer state, gradient, and the model's own copy.

    place of a local parameter in the logical model (the mesh knows it)
    + flat range of it that ZeRO gave this rank (DeepSpeed knows it) -> Fragment: flat views, no copy

    ZeRO-0   the whole parameter, on every rank of the replicas; each saves its share
    ZeRO-1/2 a range of one flat partition a parameter group (also BF16_Optimizer: ZeRO-1, bf16, fp32 gradients)
    ZeRO-3   a range of the parameter's own partition, padded at the end

Views are of DeepSpeed 0.19.8's private state; tests hold each of them against the weights.
`round_robin_gradients` would permute the mapping in silence, so our DeepSpeed config never sets it, and every
save checks that the model's copy is the rounded master.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

MASTER, BUFFER, ADAM = "master", "buffer", ("exp_avg", "exp_avg_sq")
Shape = tuple[int, ...]


class Place(NamedTuple):
    """Where a rank's parameter stands in the logical model."""

    name: str
    """Of the logical tensor."""
    shape: Shape
    """Of the logical tensor."""
    offset: Shape
    """Of this rank's piece in it."""
    writes: bool = True
    """Whether this rank saves the piece; of replicas across a mesh's axis one does."""


Places = Mapping[str, Place]
"""Name of a local parameter -> its place."""


def whole(model: torch.nn.Module) -> dict[str, Place]:
    """The places of a model of which each rank has all, under the names that it has here."""
    held = [*model.named_parameters(), *model.named_buffers()]
    shapes = {name: tuple(getattr(tensor, "ds_shape", tensor.shape)) for name, tensor in held}
    return {name: Place(name, shape, (0,) * len(shape)) for name, shape in shapes.items()}


class Fragment(NamedTuple):
    """A flat range of a rank's piece of a parameter, and views of its state."""

    place: Place
    extent: Shape
    """Of the rank's whole piece, in the logical tensor's dimensions."""
    start: int
    """Of the range in the piece, row-major."""
    state: dict[str, Tensor]
    """Kind -> flat view, fp32 but for buffers; all are of one length."""
    copy: Tensor
    """The model's own copy of the range, in the compute dtype."""
    replica: tuple[int, int] = (0, 1)
    """Which of how many ranks that hold the same range."""

    @property
    def stop(self) -> int:
        """End of the range in the piece."""
        return self.start + self.copy.numel()

    def share(self) -> Fragment:
        """The part of it that this rank saves."""
        number, count = self.replica
        length = self.copy.numel()
        low, high = length * number // count, length * (number + 1) // count
        state = {kind: view[low:high] for kind, view in self.state.items()}
        return self._replace(
            start=self.start + low, state=state, copy=self.copy[low:high], replica=(0, 1)
        )


def inner_optimizer(engine: Any) -> torch.optim.Optimizer:
    """The torch optimizer under DeepSpeed's wrappers."""
    found: torch.optim.Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return found


def flat_parameters(engine: Any) -> list[tuple[Tensor, dict[str, Any]]]:
    """The tensors by which the inner optimizer's state is keyed, each with its parameter group."""
    groups = inner_optimizer(engine).param_groups
    if engine.zero_optimization_stage() == 3:  # the groups are filled only while they are stepped
        zero = engine.optimizer
        flats = enumerate(zero.fp32_partitioned_groups_flat)
        return [(flat, groups[zero.sub_group_to_group_id[number]]) for number, flat in flats]
    return [(flat, group) for group in groups for flat in group["params"]]


def kinds(group: dict[str, Any]) -> tuple[str, ...]:
    """Names of what the inner optimizer keeps for each element of a parameter group."""
    return ("momentum_buffer",) if group.get("use_muon") else ADAM


def create_state(engine: Any, updates: int) -> None:
    """Gives the optimizer the state that it otherwise makes at its first step, so that it can be filled.

    Tensors that exist are kept: views of them stay true when a running engine is taken back.

    Args:
        engine: DeepSpeed's.
        updates: how often the optimizer has stepped.
    """
    inner = inner_optimizer(engine)
    for flat, group in flat_parameters(engine):
        state = inner.state[flat]
        for kind in kinds(group):
            if kind not in state:
                state[kind] = torch.zeros_like(flat, requires_grad=False)
        on_device = group.get("fused") or group.get("capturable")
        if "step" not in state:
            state["step"] = torch.zeros((), device=flat.device if on_device else "cpu")
        state["step"].fill_(updates)


def fragments(engine: Any, places: Places) -> Iterator[Fragment]:
    """What this rank holds of each parameter and buffer, once the optimizer has its state."""
    stage, module = engine.zero_optimization_stage(), engine.module
    groups = {id(p): group for group in inner_optimizer(engine).param_groups for p in group["params"]}
    for name, parameter in module.named_parameters():
        fragment = (
            _replicated(engine, parameter, places[name], kinds(groups[id(parameter)]))
            if stage == 0
            else (_sharded if stage == 3 else _partitioned)(engine, parameter, places[name])
        )
        if fragment:
            yield fragment
    saved = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers():
        if name in saved:
            flat = buffer.detach().view(-1)
            yield Fragment(
                places[name], _extent(buffer.shape, places[name]), 0, {BUFFER: flat}, flat, _replica(engine)
            )


def _replica(engine: Any) -> tuple[int, int]:
    group = engine.seq_data_parallel_group
    return distributed.get_rank(group), distributed.get_world_size(group)


def _replicated(engine: Any, parameter: Tensor, place: Place, kinds: tuple[str, ...]) -> Fragment:
    state, flat = inner_optimizer(engine).state[parameter], parameter.detach().view(-1)
    views = {MASTER: flat, **{kind: state[kind].view(-1) for kind in kinds}}
    return Fragment(place, _extent(parameter.shape, place), 0, views, flat, _replica(engine))


def _partitioned(engine: Any, parameter: Tensor, place: Place) -> Fragment | None:
    owned = getattr(parameter, "_hp_mapping", None)
    if owned is None:
        return None
    inner = inner_optimizer(engine)
    group = inner.param_groups[owned.param_group_index]
    state, at, of = inner.state[group["params"][0]], owned.hp_fragment_address, owned.lp_fragment_address
    # Not the mapping's own links: with several groups only the first has them (at its first step).
    moments = {kind: state[kind].narrow(0, at.start, at.numel) for kind in kinds(group)}
    copy = parameter.detach().view(-1)[of.start : of.start + of.numel]
    extent = _extent(parameter.shape, place)
    return Fragment(place, extent, of.start, {MASTER: owned.hp_fragment.detach(), **moments}, copy)


def _sharded(engine: Any, parameter: Any, place: Place) -> Fragment | None:
    zero, start, count = engine.optimizer, *_shard(parameter)
    if count <= 0:
        return None
    number, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
    flat = zero.fp32_partitioned_groups_flat[number]
    group = inner_optimizer(engine).param_groups[zero.sub_group_to_group_id[number]]
    state = inner_optimizer(engine).state[flat]
    moments = {kind: state[kind].narrow(0, offset, count) for kind in kinds(group)}
    copy = parameter.ds_tensor.detach().view(-1)[:count]
    master = flat.detach().narrow(0, offset, count)
    return Fragment(place, _extent(parameter.ds_shape, place), start, {MASTER: master, **moments}, copy)


def _shard(parameter: Any) -> tuple[int, int]:
    """Start and length of this rank's range of a ZeRO-3 parameter, padding left out (then it may be <= 0)."""
    size = parameter.ds_tensor.numel()
    start = size * distributed.get_rank(parameter.ds_process_group)
    return start, min(size, math.prod(parameter.ds_shape) - start)


def _extent(shape: Shape, place: Place) -> Shape:
    """A local shape in the logical tensor's dimensions: one expert [F, D] of [E, F, D] is [1, F, D]."""
    return (1,) * (len(place.shape) - len(shape)) + tuple(shape)


def gradients(engine: Any) -> Iterator[tuple[str, Tensor]]:
    """This rank's flat range of each averaged gradient, between the last backward pass and the step.

    The ranges of the ranks are disjoint, so sums of squares add up to those of whole gradients; with ZeRO-0
    each replica yields its share.
    """
    stage = engine.zero_optimization_stage()
    for name, parameter in engine.module.named_parameters():
        if stage == 3:
            found = engine.optimizer.get_local_fp32_grad_for_param(parameter)[: max(0, _shard(parameter)[1])]
        elif stage == 0:
            if parameter.grad is None:
                continue
            flat, (rank, count) = parameter.grad.view(-1), _replica(engine)
            found = flat[len(flat) * rank // count : len(flat) * (rank + 1) // count]
        else:
            owned = parameter._hp_mapping
            if owned is None:
                continue
            found, of = owned.get_lp_grad_fragment(parameter._index_in_param_group), owned.lp_fragment_address
            found = found.detach().reshape(-1)
            if len(found) != of.numel:  # BF16_Optimizer keeps whole gradients
                found = found[of.start : of.start + of.numel]
        if len(found):
            yield name, found.detach()


def refresh(engine: Any) -> None:
    """Has the model's copies follow the masters. Collective: an all-gather over the ranks of ZeRO."""
    stage, zero = engine.zero_optimization_stage(), engine.optimizer
    if stage in (1, 2):
        zero.update_lp_params()
    elif stage == 3:
        for number in range(len(zero.fp32_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(number)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].partition(zero.persistent_parameters)
        zero.checkpoint_event_epilogue()


def release(engine: Any) -> None:
    """Lets go of whole parameters that ZeRO-3 has gathered, so that its partitions are what counts."""
    if engine.zero_optimization_stage() == 3:
        engine.optimizer.checkpoint_event_prologue()
