"""A Llama-style decoder, read from top to bottom.

Has: rotary position embedding (halves, arXiv:2104.09864), RMSNorm before each block (arXiv:1910.07467),
SwiGLU (arXiv:2002.05202), grouped-query attention (arXiv:2305.13245), optionally tied embeddings.
Has not: biases, dropout, KV cache.
Layout of every weight is that of transformers' LlamaForCausalLM, so that export is a rename (`hf_name`).

Suffixes name the dimensions of a tensor: B batch, T time, D width, H query heads, G key and value heads,
K head width, F hidden width of the feed-forward, V vocabulary.
"""

# ruff: noqa: N803, N806  capital suffixes are the shapes

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the field's name for it

from bloomery.config.training import ModelConfig


def rotary(time: int, head_width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding, each [T, K], fp32."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width
    angles_TK = torch.outer(torch.arange(time, device=device).float(), theta**-exponents).repeat(1, 2)
    return angles_TK.cos(), angles_TK.sin()


def rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Applies the rotary embedding to queries or keys."""
    first, second = x_BHTK.chunk(2, dim=-1)
    turned_BHTK = torch.cat((-second, first), dim=-1)
    return (x_BHTK * cos_TK + turned_BHTK * sin_TK).to(x_BHTK.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.q = nn.Linear(config.width, config.heads * self.head_width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(config.heads * self.head_width, config.width, bias=False)

    def forward(self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
        """Attends: [B, T, D] -> [B, T, D]."""
        q_BHTK = self.q(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        k_BGTK = self.k(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        v_BGTK = self.v(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q_BHTK, k_BGTK = rotate(q_BHTK, cos_TK, sin_TK), rotate(k_BGTK, cos_TK, sin_TK)
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=q_BHTK.shape[1] != k_BGTK.shape[1]
        )
        out: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.ffn_width, bias=False)
        self.up = nn.Linear(config.width, config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        hidden_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        out: Tensor = self.down(hidden_BTF)
        return out


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward, each on the normed residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TK, sin_TK)
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out


class Decoder(nn.Module):
    """The model: token ids [B, T] -> logits [B, T, V]."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tied_embeddings else nn.Linear(config.width, vocab_size, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits of the next token at each position: [B, T, V]."""
        config = self.config
        cos_TK, sin_TK = rotary(
            ids_BT.shape[1], config.width // config.heads, config.rope_theta, ids_BT.device
        )
        x_BTD = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TK, sin_TK)
        x_BTD = self.norm(x_BTD)
        return F.linear(x_BTD, self.embedding.weight if self.head is None else self.head.weight)

    def initialise(self, seed: int) -> None:
        """Fresh weights, as GPT-2: normal of 0.02, projections into the residual less by sqrt(2 layers)."""
        random = torch.Generator().manual_seed(seed)
        scaled = 0.02 / math.sqrt(2 * self.config.layers)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 1:
                    weight.fill_(1.0)
                else:
                    std = scaled if name.endswith(("attention.out.weight", "ffn.down.weight")) else 0.02
                    weight.normal_(0.0, std, generator=random)


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Cross-entropy of each target in nats, fp32: [B, T]."""
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), reduction="none").view(
        targets_BT.shape
    )


_HF_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_HF = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def hf_name(name: str) -> str:
    """The name of a weight in transformers' LlamaForCausalLM."""
    module = name.removesuffix(".weight")
    if module.startswith("layers."):
        _, number, rest = module.split(".", 2)
        return f"model.layers.{number}.{_HF_LAYER[rest]}.weight"
    return f"{_HF[module]}.weight"
