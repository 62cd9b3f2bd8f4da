"""A Llama-style decoder, read from top to bottom.

Has: rotary position embedding (halves, arXiv:2104.09864), RMSNorm before each block (arXiv:1910.07467),
SwiGLU (arXiv:2002.05202), grouped-query attention (arXiv:2305.13245) within a document; optionally tied
embeddings, normed queries and keys, a sliding window, experts (training/moe.py), initial weights and rates by
muP (arXiv:2203.03466).
Has not: biases, dropout, KV cache.
Layout of every weight is that of transformers' classes, so that export is a rename (training/hf.py).

Suffixes name the dimensions of a tensor: B batch, T time, D width, H query heads, G key and value heads,
K head width, F hidden width of the feed-forward, V vocabulary.
"""

# ruff: noqa: N803, N806  capital suffixes are the shapes

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the field's name for it

from bloomery.config.model import ModelConfig
from training.attention import Attention, Sight, rotary, sight
from training.moe import MixtureOfExperts, SwiGlu


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward, each on the normed residual."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.ffn: nn.Module
        if config.moe and config.is_sparse(number):
            self.ffn = MixtureOfExperts(config, config.moe)
        else:
            self.ffn = SwiGlu(config.width, config.ffn_width)

    def forward(self, x_BTD: Tensor, turn: tuple[Tensor, Tensor], seen: Sight) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), turn, seen)
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out


class Decoder(nn.Module):
    """The model: token ids [B, T] -> logits [B, T, V]."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tied_embeddings else nn.Linear(config.width, vocab_size, bias=False)
        self.output_scale = config.mup_base_width / config.width if config.scaling == "mup" else 1.0

    def forward(self, ids_BT: Tensor, position_BT: Tensor | None = None) -> Tensor:
        """Logits of the next token at each position: [B, T, V].

        Args:
            ids_BT: token ids.
            position_BT: of each token in its document, 0 at its first; None where each row is one document.
        """
        config, documents = self.config, position_BT is not None
        if position_BT is None:
            position_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
        turn = rotary(position_BT, config.head, config.rope_theta)
        seen = sight(position_BT, documents, config.window, flex=ids_BT.is_cuda)
        x_BTD = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, turn, seen)
        x_BTD = self.norm(x_BTD) * self.output_scale
        return F.linear(x_BTD, self.embedding.weight if self.head is None else self.head.weight)

    def balance_loss(self) -> Tensor:
        """Mean of the loss of balance over layers, of the last forward pass: 1 where all is even."""
        losses = [m.balance for m in self.modules() if isinstance(m, MixtureOfExperts)]
        return torch.stack([loss for loss in losses if loss is not None]).mean()

    def initialise(self, seed: int) -> None:
        """Fresh weights, as GPT-2: normal of 0.02, projections into the residual less by sqrt(2 layers).

        With muP matrices between layers have less by the square root of the width, too (arXiv:2203.03466,
        Table 8).
        """
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 1:
                    weight.fill_(1.0)
                else:
                    std = 0.02 * math.sqrt(rate_factor(name, self.config))
                    if name.endswith(RESIDUAL):
                        std /= math.sqrt(2 * self.config.layers)
                    weight.normal_(0.0, std, generator=random)


RESIDUAL = ("attention.out.weight", "ffn.down.weight", "ffn.down", "ffn.shared.down.weight")
"""Projections into the residual stream."""


def rate_factor(name: str, config: ModelConfig) -> float:
    """What a weight's learning rate is multiplied by: with muP base / width of matrices in layers, else 1.

    Table 8 of arXiv:2203.03466, for Adam; its square root is the factor of the initial standard deviation.
    """
    between = name.startswith("layers.") and "norm" not in name
    return config.mup_base_width / config.width if config.scaling == "mup" and between else 1.0


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Cross-entropy of each target in nats, fp32: [B, T]."""
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), reduction="none").view(
        targets_BT.shape
    )


def z_losses(logits_BTV: Tensor) -> Tensor:
    """Square of the log of the softmax's normaliser, fp32: [B, T]; keeps logits small (arXiv:2204.02311,
    section 5).
    """
    return logits_BTV.float().logsumexp(-1).square()
