"""Attention: causal, grouped-query, within a document, optionally within a window.

    documents [B, T], window -> what each token sees -> flex attention on CUDA, SDPA with a mask elsewhere

Documents of one sequence do not see each other: the loader says where they begin, nothing is scanned for.
Ranks of the tensor axis have some of the heads. Those of the sequence axis have a part of the time; they
exchange it for some of the heads, and back.

Suffixes: B batch, T time, D width, H query heads, G key and value heads, K head width.
"""

# ruff: noqa: N803, N806  capital suffixes are the shapes

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the field's name for it

from bloomery.config.model import ModelConfig
from training.collectives import TIME, copied, exchanged, gathered, scattered
from training.mesh import Mesh, Peers


class Sight(NamedTuple):
    """What each token sees; without mask and blocks all before it."""

    mask: Tensor | None = None
    """[B, 1, T, T], true where a query (third) sees a key (fourth)."""
    blocks: Any = None
    """The same as flex attention's BlockMask."""


def sight(position_BT: Tensor, documents: bool, window: int | None, flex: bool) -> Sight:
    """What tokens see.

    Args:
        position_BT: of each token in its document.
        documents: whether a row may hold several.
        window: tokens that one sees, itself among them; None for all.
        flex: as blocks of flex attention, else as a mask.
    """
    if not documents and window is None:
        return Sight()
    time, device = position_BT.shape[1], position_BT.device
    document_BT = (position_BT == 0).cumsum(-1)
    reach = time if window is None else window

    def sees(batch: Tensor, _head: Any, query: Tensor, key: Tensor) -> Tensor:
        together = document_BT[batch, query] == document_BT[batch, key]
        return together & (key <= query) & (query - key < reach)

    if flex:
        from torch.nn.attention.flex_attention import create_block_mask

        return Sight(blocks=create_block_mask(sees, len(position_BT), None, time, time, device=str(device)))
    batch, step = torch.arange(len(position_BT), device=device), torch.arange(time, device=device)
    mask_BTT = sees(batch[:, None, None], None, step[None, :, None], step[None, None, :])
    return Sight(mask=mask_BTT.unsqueeze(1))


def attend(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, seen: Sight) -> Tensor:
    """Softmax attention with 1 / sqrt(K): [B, H, T, K]."""
    grouped = q_BHTK.shape[1] != k_BGTK.shape[1]
    if seen.blocks is not None:
        return flex(q_BHTK.device.type)(q_BHTK, k_BGTK, v_BGTK, block_mask=seen.blocks, enable_gqa=grouped)
    return F.scaled_dot_product_attention(
        *(q_BHTK, k_BGTK, v_BGTK), attn_mask=seen.mask, is_causal=seen.mask is None, enable_gqa=grouped
    )


@cache
def flex(device: str) -> Any:
    """Flex attention; compiled where it is used in earnest."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if device == "cuda" else flex_attention


def rotary(position_BT: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding, each [B, T, 1, K], fp32."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=position_BT.device) / head_width
    angles_BTK = (position_BT.float().unsqueeze(-1) * theta**-exponents).repeat(1, 1, 2)
    return angles_BTK.cos().unsqueeze(2), angles_BTK.sin().unsqueeze(2)


def rotate(x_BTHK: Tensor, cos_BT1K: Tensor, sin_BT1K: Tensor) -> Tensor:
    """Applies the rotary embedding to queries or keys."""
    first, second = x_BTHK.chunk(2, dim=-1)
    turned_BTHK = torch.cat((-second, first), dim=-1)
    return (x_BTHK * cos_BT1K + turned_BTHK * sin_BT1K).to(x_BTHK.dtype)


class RmsNorm(nn.RMSNorm):
    """Of a part of the activations: its weight's gradient is summed over the ranks that have the rest."""

    def __init__(self, width: int, eps: float, peers: Peers) -> None:
        super().__init__(width, eps)
        self.peers = peers

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return F.rms_norm(x, self.normalized_shape, copied(self.weight, self.peers), self.eps)


class Attention(nn.Module):
    """Projections around `attend`."""

    def __init__(self, config: ModelConfig, mesh: Mesh) -> None:
        super().__init__()
        self.head_width, self.mesh = config.head, mesh
        heads, kv_heads = config.heads // mesh.tensor.size, config.kv_heads // mesh.tensor.size
        self.q = nn.Linear(config.width, heads * config.head, bias=False)
        self.k = nn.Linear(config.width, kv_heads * config.head, bias=False)
        self.v = nn.Linear(config.width, kv_heads * config.head, bias=False)
        self.out = nn.Linear(heads * config.head, config.width, bias=False)
        norm = partial(RmsNorm, config.head, config.norm_eps, mesh.tensor)
        self.q_norm = norm() if config.qk_norm else nn.Identity()
        self.k_norm = norm() if config.qk_norm else nn.Identity()

    def forward(self, x_BTD: Tensor, turn: tuple[Tensor, Tensor], seen: Sight) -> Tensor:
        """Attends: [B, T, D] -> [B, T, D], T of this rank.

        Args:
            x_BTD: activations.
            turn: cos and sin of `rotary`, of the tokens that this rank projects.
            seen: what each token of the whole sequence sees.
        """
        x_BTD = gathered(x_BTD, self.mesh.tensor)
        q_BTHK = self.q_norm(self.q(x_BTD).unflatten(-1, (-1, self.head_width)))
        k_BTGK = self.k_norm(self.k(x_BTD).unflatten(-1, (-1, self.head_width)))
        v_BTGK = self.v(x_BTD).unflatten(-1, (-1, self.head_width))
        q_BTHK, k_BTGK = rotate(q_BTHK, *turn), rotate(k_BTGK, *turn)
        time, heads = TIME, TIME + 1
        q_BHTK, k_BGTK, v_BGTK = (
            exchanged(x, self.mesh.sequence, heads, time).transpose(1, 2) for x in (q_BTHK, k_BTGK, v_BTGK)
        )
        mixed_BTHK = attend(q_BHTK, k_BGTK, v_BGTK, seen).transpose(1, 2)
        mixed_BTHK = exchanged(mixed_BTHK, self.mesh.sequence, time, heads)
        return scattered(self.out(mixed_BTHK.flatten(-2)), self.mesh.tensor)
