"""Collectives that a model is differentiated through; over an axis of one rank each is the identity.

    forward                       backward
    copied      as it is          sum over ranks          a weight that each rank uses on its own part
    summed      sum over ranks    as it is                partial sums of one result
    gathered    all parts         sum, own part           [B, T/n, D] -> [B, T, D]
    scattered   sum, own part     all parts               [B, T, D] -> [B, T/n, D]
    exchanged   heads for time    time for heads          [B, T/n, H, K] <-> [B, T, H/n, K]

The first four are f and g of arXiv:1909.08053 (section 3) and their sequence-parallel forms
(arXiv:2205.05198, section 4.2.2); the last is Ulysses' (arXiv:2309.14509, section 3.1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from training.mesh import Peers

TIME = 1
"""Dimension of time."""


def copied(x: Tensor, peers: Peers) -> Tensor:
    """`x` as it is; its gradient is the sum of all ranks'."""
    out: Tensor = x if peers.size == 1 else _Copied.apply(x, peers)
    return out


def summed(x: Tensor, peers: Peers) -> Tensor:
    """The sum of all ranks' `x`, of which each has the gradient of the whole."""
    out: Tensor = x if peers.size == 1 else _Summed.apply(x, peers)
    return out


def gathered(x: Tensor, peers: Peers) -> Tensor:
    """All ranks' parts in time."""
    out: Tensor = x if peers.size == 1 else _Gathered.apply(x, peers)
    return out


def scattered(x: Tensor, peers: Peers) -> Tensor:
    """This rank's part in time of the sum of all ranks' `x`."""
    out: Tensor = x if peers.size == 1 else _Scattered.apply(x, peers)
    return out


def exchanged(x: Tensor, peers: Peers, split: int, join: int) -> Tensor:
    """Gives parts of dimension `split` to the other ranks, and joins theirs in dimension `join`."""
    out: Tensor = x if peers.size == 1 else _Exchanged.apply(x, peers, split, join)
    return out


def part(x: Tensor, peers: Peers, dim: int = TIME) -> Tensor:
    """This rank's part of what all ranks have; not differentiated."""
    first, last = peers.share(x.shape[dim])
    return x.narrow(dim, first, last - first)


def _sum(x: Tensor, peers: Peers) -> Tensor:
    out = x.contiguous().clone()
    distributed.all_reduce(out, group=peers.group)
    return out


def _gather(x: Tensor, peers: Peers) -> Tensor:
    parts = x.new_empty((peers.size, *x.shape))
    distributed.all_gather_into_tensor(parts.flatten(0, 1), x.contiguous(), group=peers.group)
    return torch.cat(list(parts), TIME)


def _scatter(x: Tensor, peers: Peers) -> Tensor:
    parts = torch.stack(x.chunk(peers.size, TIME))
    out = torch.empty_like(parts[0])
    distributed.reduce_scatter_tensor(out, parts.flatten(0, 1), group=peers.group)
    return out


def _exchange(x: Tensor, peers: Peers, split: int, join: int) -> Tensor:
    sent = torch.stack(x.chunk(peers.size, split))
    got = torch.empty_like(sent)
    distributed.all_to_all_single(got, sent, group=peers.group)
    return torch.cat(list(got), join)


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.peers), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        return _sum(x, peers)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return _gather(x, peers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _scatter(grad, ctx.peers), None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return _scatter(x, peers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.peers), None


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers, split: int, join: int) -> Tensor:
        ctx.about = peers, join, split
        return _exchange(x, peers, split, join)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(grad, *ctx.about), None, None, None
