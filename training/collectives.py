"""Collectives that a model is differentiated through; over an axis of one rank each is the identity.

    forward                       backward
    copied      as it is          sum over ranks          a weight that each rank uses on its own part
    summed      sum over ranks    as it is                partial sums of one result
    gathered    all parts         sum, own part           [B, T/n, D] -> [B, T, D]
    scattered   sum, own part     all parts               [B, T, D] -> [B, T/n, D]
    exchanged   heads for time    time for heads          [B, T/n, H, K] <-> [B, T, H/n, K]
    sent        rows to experts   back                    [S, D] -> [S', D]

The first four are f and g of arXiv:1909.08053 (section 3) and their sequence-parallel forms
(arXiv:2205.05198, section 4.2.2); `exchanged` is Ulysses' (arXiv:2309.14509, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from training.mesh import Peers

TIME = 1
"""Dimension of time."""


def copied(x: Tensor, peers: Peers) -> Tensor:
    """`x` as it is; its gradient is the sum of all ranks'."""
    return x if peers.size == 1 else through(x, _same, partial(_sum, peers))


def summed(x: Tensor, peers: Peers) -> Tensor:
    """The sum of all ranks' `x`, of which each has the gradient of the whole."""
    return x if peers.size == 1 else through(x, partial(_sum, peers), _same)


def gathered(x: Tensor, peers: Peers) -> Tensor:
    """All ranks' parts in time."""
    return x if peers.size == 1 else through(x, partial(_gather, peers), partial(_scatter, peers))


def scattered(x: Tensor, peers: Peers) -> Tensor:
    """This rank's part in time of the sum of all ranks' `x`."""
    return x if peers.size == 1 else through(x, partial(_scatter, peers), partial(_gather, peers))


def exchanged(x: Tensor, peers: Peers, split: int, join: int) -> Tensor:
    """Gives parts of dimension `split` to the other ranks, and joins theirs in dimension `join`."""
    there, back = (partial(_exchange, peers, *dims) for dims in ((split, join), (join, split)))
    return x if peers.size == 1 else through(x, there, back)


def sent(x: Tensor, peers: Peers, go: list[int], come: list[int]) -> Tensor:
    """Rows to the other ranks, `go[r]` to rank r, of which `come[r]` arrive."""
    return through(x, partial(_send, peers, go, come), partial(_send, peers, come, go))


def through(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """`there(x)`, whose gradient comes back by `back`."""
    out: Tensor = _Through.apply(x, there, back)
    return out


def part(x: Tensor, peers: Peers, dim: int = TIME) -> Tensor:
    """This rank's part of what all ranks have; not differentiated."""
    first, last = peers.share(x.shape[dim])
    return x.narrow(dim, first, last - first)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad), None, None


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _sum(peers: Peers, x: Tensor) -> Tensor:
    out = x.contiguous().clone()
    distributed.all_reduce(out, group=peers.group)
    return out


def _gather(peers: Peers, x: Tensor) -> Tensor:
    parts = x.new_empty((peers.size, *x.shape))
    distributed.all_gather_into_tensor(parts.flatten(0, 1), x.contiguous(), group=peers.group)
    return torch.cat(list(parts), TIME)


def _scatter(peers: Peers, x: Tensor) -> Tensor:
    parts = torch.stack(x.chunk(peers.size, TIME))
    out = torch.empty_like(parts[0])
    distributed.reduce_scatter_tensor(out, parts.flatten(0, 1), group=peers.group)
    return out


def _exchange(peers: Peers, split: int, join: int, x: Tensor) -> Tensor:
    parts = torch.stack(x.chunk(peers.size, split))
    got = torch.empty_like(parts)
    distributed.all_to_all_single(got, parts, group=peers.group)
    return torch.cat(list(got), join)


def _send(peers: Peers, go: list[int], come: list[int], x: Tensor) -> Tensor:
    out = x.new_empty((sum(come), *x.shape[1:]))
    distributed.all_to_all_single(out, x.contiguous(), come, go, group=peers.group)
    return out
