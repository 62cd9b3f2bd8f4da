"""A mixture of experts in place of a feed-forward: token choice, top k (arXiv:2006.16668, arXiv:2101.03961).

    x [N, D] -> router: softmax over E -> top k of a token -> tokens sorted by expert
             -> to the ranks that have the experts -> each expert's SwiGLU -> back
             -> weighted sum, + shared experts of every token

Has: dropless, or a capacity beyond which an expert does not serve later tokens of the batch; shared experts
(arXiv:2401.06066); a loss that spreads tokens evenly, or a bias of each expert that follows its load
(arXiv:2408.15664); experts spread over ranks. DeepSpeed takes the gradients of those for what they are: each
expert's is summed over the ranks that have it.

Suffixes: N tokens, E experts, e those of this rank, D width, F hidden width of an expert, A assignments
(N * k), S those that are served.
"""

# ruff: noqa: N803, N806  capital suffixes are the shapes

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F  # noqa: N812  the field's name for it

from bloomery.config.model import ModelConfig, MoeConfig
from training.collectives import gathered, scattered, sent, summed
from training.mesh import Mesh, Peers, expert_group


class MixtureOfExperts(nn.Module):
    """Routed experts and shared ones."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, mesh: Mesh = Mesh()) -> None:  # noqa: B008
        super().__init__()
        self.moe, self.peers, self.sequence = moe, mesh.expert, mesh.sequence
        wide, own = moe.shared_experts * moe.ffn_width, moe.experts // self.peers.size
        self.router = Router(config.width, moe.experts, bias=False)
        self.gate = self._experts(own, moe.ffn_width, config.width)
        self.up = self._experts(own, moe.ffn_width, config.width)
        self.down = self._experts(own, config.width, moe.ffn_width)
        # Experts of every token are one SwiGLU as wide as all of them.
        self.shared = SwiGlu(config.width, wide) if wide else None
        self.balance: Tensor | None = None
        """Loss of the last forward pass that is least where all experts are sent as many tokens."""
        self.balance_weight = 0.0
        """What the backward pass adds of it."""
        self.load: Tensor | None = None
        """With biases: tokens that each expert was sent since the last step, [E]."""
        if moe.bias_rate:
            # In steps of the rate: whole numbers, which no cast to bf16 rounds.
            self.bias = nn.Buffer(torch.zeros(moe.experts, dtype=torch.int64))

    def _experts(self, *shape: int) -> nn.Parameter:
        weight = nn.Parameter(torch.empty(shape))
        if self.peers.size > 1:
            about = {"expert": True, "allreduce": False, "group_name": expert_group(self.peers.size)}
            vars(weight).update(about)
        return weight

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x_ND = x_BTD.flatten(0, -2)
        weight_Nk, expert_Nk, count_E = self._route(x_ND)
        slot_S, sizes = self._served(expert_Nk, count_E)
        token_S = slot_S // self.moe.top_k
        out_SD = self._by_expert(x_ND[token_S], sizes)
        weight_S1 = weight_Nk.flatten()[slot_S].unsqueeze(-1).to(x_ND.dtype)
        out_ND = torch.zeros_like(x_ND).index_add(0, token_S, out_SD * weight_S1)
        if self.shared is not None:
            out_ND = out_ND + self.shared(x_ND)
        return out_ND.view_as(x_BTD)

    def _route(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, fp32, and experts of each token, [N, k] each, and tokens of each expert, [E]; notes the
        balance.
        """
        score_NE, moe = self.router(x_ND), self.moe
        if moe.bias_rate:
            probability_NE = score_NE.sigmoid()
            expert_Nk = (probability_NE + moe.bias_rate * self.bias).topk(moe.top_k, dim=-1).indices
            weight_Nk = probability_NE.gather(-1, expert_Nk)
            probability_NE = probability_NE / probability_NE.sum(-1, keepdim=True)
        else:
            probability_NE = score_NE.softmax(-1)
            weight_Nk, expert_Nk = probability_NE.topk(moe.top_k, dim=-1)
        count_E = torch.bincount(expert_Nk.flatten(), minlength=moe.experts)
        if moe.bias_rate and self.training:
            self.load = count_E if self.load is None else self.load + count_E
        sent_E = count_E / expert_Nk.numel()
        sent_E, mean_E = (  # of the whole sequence, whose parts have as many tokens
            summed(part_E, self.sequence) / self.sequence.size for part_E in (sent_E, probability_NE.mean(0))
        )
        self.balance = self.moe.experts * (sent_E * mean_E).sum()
        if self.moe.renormalise:
            weight_Nk = weight_Nk / weight_Nk.sum(-1, keepdim=True)
        if self.balance_weight:
            weight_Nk = _Attached.apply(weight_Nk, self.balance, self.balance_weight)
        return weight_Nk, expert_Nk, count_E

    def follow_load(self, load_E: Tensor) -> None:
        """Moves each bias a step up where an expert was sent less than the mean, down where more: [E]."""
        self.bias.add_((load_E.double().mean() - load_E).sign().long())

    def _served(self, expert_Nk: Tensor, count_E: Tensor) -> tuple[Tensor, list[int]]:
        """Assignments that are served, by expert, then by token: [S]; and how many of each expert: [E]."""
        slot_A = expert_Nk.flatten().argsort(stable=True)
        sizes: list[int] = count_E.tolist()
        if self.moe.capacity is None or not self.training:  # who does not train serves all
            return slot_A, sizes
        most = math.ceil(self.moe.capacity * expert_Nk.numel() / self.moe.experts)
        parts = [part[:most] for part in slot_A.split(sizes)]
        return torch.cat(parts), [len(part) for part in parts]

    def _by_expert(self, x_SD: Tensor, sizes: list[int]) -> Tensor:
        """Each row by its expert, rows in the order of experts: [S, D]."""
        if self.peers.size == 1:
            return self._own(x_SD, sizes)
        ranks, per = self.peers.size, len(self.gate)
        mine_E = torch.tensor(sizes, device=x_SD.device)
        theirs_E = torch.empty_like(mine_E)
        distributed.all_to_all_single(theirs_E, mine_E, group=self.peers.group)
        come_Re: list[list[int]] = theirs_E.view(ranks, per).tolist()  # from each rank, for each own expert
        go_R, come_R = mine_E.view(ranks, per).sum(-1).tolist(), [sum(row) for row in come_Re]
        pieces = sent(x_SD, self.peers, go_R, come_R).split([n for row in come_Re for n in row])
        by_expert = torch.cat([pieces[r * per + e] for e in range(per) for r in range(ranks)])
        out_SD = self._own(by_expert, [sum(row[e] for row in come_Re) for e in range(per)])
        pieces = out_SD.split([row[e] for e in range(per) for row in come_Re])
        by_rank = torch.cat([pieces[e * ranks + r] for r in range(ranks) for e in range(per)])
        return sent(by_rank, self.peers, come_R, go_R)

    def _own(self, x_SD: Tensor, sizes: list[int]) -> Tensor:
        """Rows by this rank's experts, `sizes[e]` of each."""
        parts = enumerate(x_SD.split(sizes))
        return torch.cat([F.linear(swiglu(x, self.gate[e], self.up[e]), self.down[e]) for e, x in parts])


class Router(nn.Linear):
    """Scores of the experts, in fp32 whatever the model computes in."""

    def forward(self, x_ND: Tensor) -> Tensor:
        """[N, D] -> [N, E]."""
        return F.linear(x_ND.float(), self.weight.float())


class SwiGlu(nn.Module):
    """A feed-forward (arXiv:2002.05202), of whose hidden width this rank has a part."""

    def __init__(self, width: int, hidden: int, peers: Peers = Peers()) -> None:  # noqa: B008
        super().__init__()
        self.peers = peers
        first, last = peers.share(hidden)
        self.gate = nn.Linear(width, last - first, bias=False)
        self.up = nn.Linear(width, last - first, bias=False)
        self.down = nn.Linear(last - first, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        x_BTD = gathered(x_BTD, self.peers)
        return scattered(self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD)), self.peers)


def swiglu(x_ND: Tensor, gate_FD: Tensor, up_FD: Tensor) -> Tensor:
    """silu(gate x) * (up x): [..., D] -> [..., F]."""
    return F.silu(F.linear(x_ND, gate_FD)) * F.linear(x_ND, up_FD)


class _Attached(torch.autograd.Function):
    """`x` as it is, whose backward pass also begins that of `loss`: no stage has to carry a loss on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.grad = torch.full_like(loss, weight)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, ctx.grad, None
