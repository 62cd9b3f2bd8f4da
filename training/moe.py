"""A mixture of experts in place of a feed-forward: token choice, top k (arXiv:2006.16668, arXiv:2101.03961).

    x [N, D] -> router: softmax over E -> top k of a token -> tokens sorted by expert -> each expert's SwiGLU
             -> weighted sum, + shared experts of every token

Has: dropless, or a capacity beyond which an expert does not serve later tokens of the batch; shared experts
(arXiv:2401.06066); a loss that spreads tokens evenly. Has not: expert parallelism.

Suffixes: N tokens, E experts, D width, F hidden width of an expert, A assignments (N * k).
"""

# ruff: noqa: N803, N806  capital suffixes are the shapes

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the field's name for it

from bloomery.config.model import ModelConfig, MoeConfig


class MixtureOfExperts(nn.Module):
    """Routed experts and shared ones."""

    def __init__(self, config: ModelConfig, moe: MoeConfig) -> None:
        super().__init__()
        self.moe = moe
        wide = moe.shared_experts * moe.ffn_width
        self.router = nn.Linear(config.width, moe.experts, bias=False)
        self.gate = nn.Parameter(torch.empty(moe.experts, moe.ffn_width, config.width))
        self.up = nn.Parameter(torch.empty(moe.experts, moe.ffn_width, config.width))
        self.down = nn.Parameter(torch.empty(moe.experts, config.width, moe.ffn_width))
        # Experts of every token are one SwiGLU as wide as all of them.
        self.shared = SwiGlu(config.width, wide) if wide else None
        self.balance: Tensor | None = None
        """Loss of the last forward pass that is least where all experts are sent as many tokens."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x_ND = x_BTD.flatten(0, -2)
        weight_Nk, expert_Nk = self._route(x_ND)
        out_ND = torch.zeros_like(x_ND)
        order_A = expert_Nk.flatten().argsort(stable=True)  # by expert, then by token
        token_A = order_A // self.moe.top_k
        sizes = torch.bincount(expert_Nk.flatten(), minlength=self.moe.experts).tolist()
        for expert, (sent_S, slot_S) in enumerate(
            zip(token_A.split(sizes), order_A.split(sizes), strict=True)
        ):
            served = self._served(len(x_ND), len(sent_S))
            token_C, weight_C = sent_S[:served], weight_Nk.flatten()[slot_S[:served]]
            hidden_CF = swiglu(x_ND[token_C], self.gate[expert], self.up[expert])
            part_CD = F.linear(hidden_CF, self.down[expert]) * weight_C.unsqueeze(-1).to(x_ND.dtype)
            out_ND = out_ND.index_add(0, token_C, part_CD)
        if self.shared is not None:
            out_ND = out_ND + self.shared(x_ND)
        return out_ND.view_as(x_BTD)

    def _route(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, fp32, and experts of each token: [N, k] each; notes the balance."""
        probability_NE = F.linear(x_ND.float(), self.router.weight.float()).softmax(-1)
        weight_Nk, expert_Nk = probability_NE.topk(self.moe.top_k, dim=-1)
        sent_E = torch.bincount(expert_Nk.flatten(), minlength=self.moe.experts) / expert_Nk.numel()
        self.balance = self.moe.experts * (sent_E * probability_NE.mean(0)).sum()
        if self.moe.renormalise:
            weight_Nk = weight_Nk / weight_Nk.sum(-1, keepdim=True)
        return weight_Nk, expert_Nk

    def _served(self, tokens: int, sent: int) -> int:
        """Tokens that an expert serves of those that are sent to it; who does not train serves all."""
        if self.moe.capacity is None or not self.training:
            return sent
        return min(sent, math.ceil(self.moe.capacity * tokens * self.moe.top_k / self.moe.experts))


class SwiGlu(nn.Module):
    """A feed-forward (arXiv:2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        out: Tensor = self.down(swiglu(x_BTD, self.gate.weight, self.up.weight))
        return out


def swiglu(x_ND: Tensor, gate_FD: Tensor, up_FD: Tensor) -> Tensor:
    """silu(gate x) * (up x): [..., D] -> [..., F]."""
    return F.silu(F.linear(x_ND, gate_FD)) * F.linear(x_ND, up_FD)
