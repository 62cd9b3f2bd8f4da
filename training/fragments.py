"""What this rank holds of each weight: master, optimizer state, and the model's own copy.

    place of a rank's part in the logical weight (the model knows it)
    + flat range of it that ZeRO gave this rank (DeepSpeed knows it) -> Fragment: flat views, no copy

    ZeRO-0   the whole part, on every replica; each saves its share
    ZeRO-1/2 a range of one flat partition a parameter group (so BF16_Optimizer: ZeRO-1 in bf16)
    ZeRO-3   a range of the part's own partition, padded at the end

Views are of DeepSpeed 0.19.8's private state; tests hold each of them against the weights.
`round_robin_gradients` would permute the mapping in silence, so our DeepSpeed config never sets it, and every
save checks that the model's copy is the rounded master.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, distributed

from training.engine import Engine
from training.model import Decoder, Place
from training.optim import Optimizer

MASTER, AVERAGE, BUFFER = "master", "ema", "buffer"


class Fragment(NamedTuple):
    """A flat range of a rank's part of a weight or buffer, and views of its state."""

    name: str
    """Of the logical tensor."""
    place: Place
    extent: tuple[int, ...]
    """Of the rank's whole part."""
    start: int
    """Of the range in the part, row-major."""
    state: dict[str, Tensor]
    """Kind -> flat view, fp32 but for buffers; all are of one length."""
    copy: Tensor
    """The model's own copy of the range, in the compute dtype."""
    replica: tuple[int, int] = (0, 1)
    """Which of how many ranks that hold the same range."""

    @property
    def stop(self) -> int:
        """End of the range in the part."""
        return self.start + self.copy.numel()

    def share(self) -> Fragment:
        """The part of the range that this rank saves, of replicas."""
        (number, count), length = self.replica, self.copy.numel()
        low, high = length * number // count, length * (number + 1) // count
        state = {kind: view[low:high] for kind, view in self.state.items()}
        return self._replace(start=self.start + low, state=state, copy=self.copy[low:high], replica=(0, 1))


def inner_optimizer(engine: Any) -> Optimizer:
    """Ours, under DeepSpeed's wrappers."""
    found: Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return found


def flat_parameters(engine: Any) -> list[tuple[Tensor, dict[str, Any]]]:
    """The tensors by which the inner optimizer's state is keyed, each with its parameter group."""
    groups = inner_optimizer(engine).param_groups
    if engine.zero_optimization_stage() == 3:  # the groups are filled only while they are stepped
        zero = engine.optimizer
        flats = enumerate(zero.fp32_partitioned_groups_flat)
        return [(flat, groups[zero.sub_group_to_group_id[number]]) for number, flat in flats]
    return [(flat, group) for group in groups for flat in group["params"]]


def create_state(engine: Any, updates: int) -> None:
    """Gives the optimizer the state that it otherwise makes at its first step, so that it can be filled.

    Tensors that exist are kept: views of them stay true when a running engine is taken back.

    Args:
        engine: DeepSpeed's.
        updates: how often the optimizer has stepped.
    """
    inner = inner_optimizer(engine)
    for flat, group in flat_parameters(engine):
        if not inner.state[flat]:
            inner.create_state(group, flat)
        inner.state[flat]["step"].fill_(updates)


def fragments(engine: Engine) -> Iterator[Fragment]:
    """What this rank holds of each weight and buffer, once the optimizer has its state."""
    zero, stage = engine.deepspeed, engine.parallel.zero_stage
    find = {0: _replicated, 1: _partitioned, 2: _partitioned, 3: _sharded}[stage]
    for name, weight, place in engine.model.places():
        yield from find(zero, name, weight, place)
    for name, buffer in buffers(engine.model):
        shape, flat = tuple(buffer.shape), buffer.view(-1)
        place = Place(shape, (0,) * len(shape), copy=engine.mesh.tensor.rank > 0)
        yield Fragment(name, place, shape, 0, {BUFFER: flat}, flat, _replica(zero))


def buffers(model: Decoder) -> list[tuple[str, Tensor]]:
    """What a model keeps beside weights; each rank that has the layer has it whole."""
    saved = model.state_dict(keep_vars=True).keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in saved]


def graph(model: Decoder) -> dict[str, list[int]]:
    """Names and shapes of all that is saved of a model."""
    weights = {name: list(place.shape) for name, _, place in model.places()}
    return weights | {name: list(buffer.shape) for name, buffer in buffers(model)}


def owned(engine: Engine) -> list[Fragment]:
    """What this rank saves of it: of equal ranges on several ranks one saves each element."""
    return [fragment.share() for fragment in fragments(engine) if not fragment.place.copy]


def _replica(engine: Any) -> tuple[int, int]:
    group = engine.seq_data_parallel_group
    return distributed.get_rank(group), distributed.get_world_size(group)


def _replicated(engine: Any, name: str, weight: Tensor, place: Place) -> Iterator[Fragment]:
    inner, flat = inner_optimizer(engine), weight.detach().view(-1)
    group = next(g for g in inner.param_groups if any(p is weight for p in g["params"]))
    state = {MASTER: flat, **{kind: inner.state[weight][kind].view(-1) for kind in group["kinds"]}}
    yield Fragment(name, place, tuple(weight.shape), 0, state, flat, _replica(engine))


def _partitioned(engine: Any, name: str, weight: Any, place: Place) -> Iterator[Fragment]:
    owned = weight._hp_mapping
    if owned is None:
        return
    inner = inner_optimizer(engine)
    group = inner.param_groups[owned.param_group_index]
    state, at, of = inner.state[group["params"][0]], owned.hp_fragment_address, owned.lp_fragment_address
    # Not the mapping's own links: with several groups only the first has them (at its first step).
    moments = {kind: state[kind].narrow(0, at.start, at.numel) for kind in group["kinds"]}
    copy = weight.detach().view(-1)[of.start : of.start + of.numel]
    views = {MASTER: owned.hp_fragment.detach(), **moments}
    yield Fragment(name, place, tuple(weight.shape), of.start, views, copy)


def _sharded(engine: Any, name: str, weight: Any, place: Place) -> Iterator[Fragment]:
    zero, size, shape = engine.optimizer, weight.ds_tensor.numel(), tuple(weight.ds_shape)
    start = size * distributed.get_rank(weight.ds_process_group)
    count = min(size, math.prod(shape) - start)  # without the padding
    if count <= 0:
        return
    number, at, _ = zero.grad_position[zero.get_param_id(weight)]
    flat = zero.fp32_partitioned_groups_flat[number]
    group = inner_optimizer(engine).param_groups[zero.sub_group_to_group_id[number]]
    state = inner_optimizer(engine).state[flat]
    moments = {kind: state[kind].narrow(0, at, count) for kind in group["kinds"]}
    views = {MASTER: flat.detach().narrow(0, at, count), **moments}
    yield Fragment(name, place, shape, start, views, weight.ds_tensor.detach().view(-1)[:count])


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
    """Lets go of whole weights that ZeRO-3 has gathered, so that its partitions are what counts."""
    if engine.zero_optimization_stage() == 3:
        engine.optimizer.checkpoint_event_prologue()
