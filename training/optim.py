"""The optimizer: AdamW, by choice Muon for the matrices of layers, by choice an average of the weights.

    layers' matrices -> AdamW with decay, or Muon          norms -> AdamW without decay
    embedding, head, router -> AdamW with decay            all: ema <- decay * ema + (1 - decay) * weight

DeepSpeed replaces a group's parameters by this rank's flat range of them. AdamW and the average work element
by element and do not care. Muon makes a whole matrix orthogonal, so a matrix that ranks cut between them is
put together by one all-reduce of all such matrices' momenta (arXiv:2502.16982, Algorithm 1), and each rank
takes its own piece of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from bloomery.config.training import TrainConfig
from training.model import Place, rate_factor

STEPS = 5
"""Newton-Schulz iterations."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al., https://kellerjordan.github.io/posts/muon/: steep at zero, singular values end near 1."""


class Optimizer(torch.optim.AdamW):
    """AdamW (arXiv:1711.05101), and Muon for groups whose `rule` says so; an average of weights if asked for.

    State of a flat parameter, each of its shape: a group's `kinds`.
    """

    def __init__(self, groups: list[dict[str, Any]], train: TrainConfig) -> None:
        """Takes groups with params, rule, weight_decay and rate_factor."""
        for group in groups:
            group["of"] = tuple(group["params"])  # DeepSpeed puts flat ranges in their place
            moments = ("exp_avg",) if group["rule"] == "muon" else ("exp_avg", "exp_avg_sq")
            group["kinds"] = (*moments, "ema") if train.ema else moments
        super().__init__(groups, lr=train.learning_rate, betas=train.betas, fused=True)
        self.ema, self.momentum = train.ema, train.muon_momentum
        self.orthogonal_dtype = torch.float32 if train.dtype == "fp32" else torch.bfloat16
        self._cut: dict[int, list[bool]] = {}

    @torch.no_grad()
    def create_state(self, group: dict[str, Any], parameter: Tensor) -> None:
        """Gives a parameter of a group the state that it has before the first step."""
        state = {kind: torch.zeros_like(parameter, requires_grad=False) for kind in group["kinds"]}
        if self.ema:
            state["ema"].copy_(parameter)
        self.state[parameter].update(step=torch.zeros((), device=parameter.device), **state)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update; gradients of Muon's groups are used up."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self.create_state(group, parameter)
            if group["rule"] == "muon":
                self._muon(group)
        loss = super().step(closure)
        if self.ema:
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["ema"].lerp_(parameter, 1 - self.ema)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        """Nesterov momentum, element by element; then each matrix made orthogonal, as long as AdamW's usual
        update, so that both share a learning rate (arXiv:2502.16982, equation 4).
        """
        for parameter in group["params"]:
            momentum, gradient = self.state[parameter]["exp_avg"], parameter.grad
            assert gradient is not None
            momentum.lerp_(gradient, 1 - self.momentum)
            gradient.lerp_(momentum, self.momentum)
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            self.state[parameter]["step"] += 1
        pieces = list(_pieces(group))
        for piece, whole in zip(pieces, self._wholes(group, pieces), strict=True):
            if piece.size:
                update = orthogonal(whole.view(piece.matrix.shape), self.orthogonal_dtype)
                update *= 0.2 * math.sqrt(max(piece.matrix.shape[-2:]))
                own = update.view(-1)[piece.start : piece.start + piece.size]
                piece.range_of(piece.flat).add_(own, alpha=-group["lr"])
        for parameter in group["params"]:
            parameter.grad = None  # AdamW passes over it

    def _wholes(self, group: dict[str, Any], pieces: list[Piece]) -> Iterator[Tensor]:
        """The momentum of each matrix that this rank has a piece of, whole and flat."""
        process_group = getattr(group["of"][0], "_dp_group", None)
        key = id(group["params"][0])
        if key not in self._cut:
            self._cut[key] = _any_rank([0 < p.size < p.matrix.numel() for p in pieces], process_group, pieces)
        cut = self._cut[key]
        shared = [p for p, is_cut in zip(pieces, cut, strict=True) if is_cut]
        buffers = iter(_put_together(shared, process_group))
        for piece, is_cut in zip(pieces, cut, strict=True):
            yield next(buffers) if is_cut else piece.range_of(piece.gradient)


class Piece(NamedTuple):
    """What this rank has of a matrix: `size` elements from `start` on, at `at` of its flat range."""

    matrix: nn.Parameter
    start: int
    size: int
    flat: Tensor
    at: int

    @property
    def gradient(self) -> Tensor:
        """Of the whole flat range."""
        assert self.flat.grad is not None
        return self.flat.grad

    def range_of(self, flat: Tensor) -> Tensor:
        """The piece's range of a flat tensor."""
        return flat.view(-1)[self.at : self.at + self.size]


def _pieces(group: dict[str, Any]) -> Iterator[Piece]:
    """Of each matrix of a group: all of it, or what DeepSpeed left this rank."""
    flat = group["params"][0]
    for matrix in group["of"]:
        if not hasattr(matrix, "_hp_mapping"):  # ZeRO-0: nothing is cut
            yield Piece(matrix, 0, matrix.numel(), matrix, 0)
        elif matrix._hp_mapping is None:
            yield Piece(matrix, 0, 0, flat, 0)
        else:
            own, place = matrix._hp_mapping.lp_fragment_address, matrix._hp_mapping.hp_fragment_address
            yield Piece(matrix, own.start, own.numel, flat, place.start)


def _any_rank(found: list[bool], process_group: Any, pieces: list[Piece]) -> list[bool]:
    if process_group is None or not found:
        return found
    flags = torch.tensor(found, dtype=torch.float32, device=pieces[0].flat.device)
    distributed.all_reduce(flags, op=distributed.ReduceOp.MAX, group=process_group)
    return [bool(flag) for flag in flags.tolist()]


def _put_together(pieces: list[Piece], process_group: Any) -> Iterable[Tensor]:
    """Whole matrices of all ranks' pieces: each adds its own to zeros, which is exact."""
    if not pieces:
        return ()
    sizes = [piece.matrix.numel() for piece in pieces]
    buffer = torch.zeros(sum(sizes), device=pieces[0].flat.device)
    wholes = buffer.split(sizes)
    for piece, whole in zip(pieces, wholes, strict=True):
        whole[piece.start : piece.start + piece.size] = piece.range_of(piece.gradient)
    distributed.all_reduce(buffer, group=process_group)
    return wholes


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """About U V^T of a matrix U S V^T, [..., m, n]: Newton-Schulz, quintic, `STEPS` times, in `dtype`."""
    a, b, c = QUINTIC
    x = matrix.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype).contiguous()


def optimizer(places: Iterable[tuple[str, nn.Parameter, Place]], train: TrainConfig) -> Optimizer:
    """The optimizer of weights by their logical names; each group has the `rate_factor` of its rate."""
    groups: dict[tuple[str, bool, float, str], list[nn.Parameter]] = {}
    for name, weight, place in places:
        matrix = len(place.shape) >= 2
        inner = matrix and name.startswith("layers.") and "router" not in name
        rule = "muon" if train.optimizer == "muon" and inner else "adamw"
        key = rule, matrix, rate_factor(name, train.model), getattr(weight, "group_name", "")
        groups.setdefault(key, []).append(weight)
    return Optimizer(
        [
            {
                "params": found,
                "rule": rule,
                "weight_decay": train.weight_decay if decays else 0.0,
                "rate_factor": factor,
                "name": spread or "dense",
                "moe": bool(spread),  # DeepSpeed reduces them over the ranks that have the same experts
            }
            for (rule, decays, factor, spread), found in sorted(groups.items(), reverse=True)
        ],
        train,
    )
