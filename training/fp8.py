"""Products of the layers' matrices in fp8: bf16 in, bf16 out, sums in fp32.

    forward   x (e4m3) w (e4m3)      backward   g (e5m2) w, g x      each scaled by its largest value

Formats as arXiv:2209.05433; the scale is of the tensor itself, not of those before. Embedding, output, norms,
routers, experts and attention stay as they are. The CPU multiplies so as well, slowly: for tests.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def use_fp8(layers: nn.Module) -> None:
    """Has every linear layer of `layers` multiply in fp8."""
    for module in layers.modules():
        if type(module) is nn.Linear:
            module.forward = MethodType(_linear, module)  # type: ignore[method-assign]


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    out: Tensor = _Product.apply(x.flatten(0, -2), module.weight)
    return out.unflatten(0, x.shape[:-1])


def scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` in fp8, and the fp32 scale that gives it back."""
    scale = (x.abs().max().float() / torch.finfo(kind).max).clamp(min=1e-12)
    return (x / scale).to(kind), scale


def _product(a_MK: tuple[Tensor, Tensor], b_NK: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:  # noqa: N803
    """a b^T: [M, N]."""
    (a, scale_a), (b, scale_b) = a_MK, b_NK
    return torch._scaled_mm(
        a.contiguous(), b.contiguous().t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, weight8 = scaled(x, FORWARD), scaled(weight, FORWARD)
        ctx.save_for_backward(*x8, *weight8)
        return _product(x8, weight8, x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, scale_x, weight, scale_weight = ctx.saved_tensors
        grad8, scale = scaled(grad, BACKWARD)
        to_x = _product((grad8, scale), (weight.t(), scale_weight), grad.dtype)
        to_weight = _product((grad8.t(), scale), (x.t(), scale_x), grad.dtype)
        return to_x, to_weight
