"""A Llama-style decoder, read from top to bottom.

Has: rotary position embedding (halves, arXiv:2104.09864), RMSNorm before each block (arXiv:1910.07467),
SwiGLU (arXiv:2002.05202), grouped-query attention (arXiv:2305.13245) within a document; optionally tied
embeddings, normed queries and keys, a sliding window, experts (training/moe.py), initial weights and rates by
muP (arXiv:2203.03466).
Has not: biases, dropout, KV cache.
Layout of every weight is that of transformers' classes, so that export is a rename (training/hf.py).

On a mesh a rank has the layers of its stage, of each the heads, the columns and the rows of the vocabulary of
its shard, and between blocks a part of the time. The names of weights are the same everywhere, and `places`
says which part of the whole a rank has.

Suffixes name the dimensions of a tensor: B batch, T time, D width, H query heads, G key and value heads,
K head width, F hidden width of the feed-forward, V vocabulary.
"""

# ruff: noqa: N803, N806  capital suffixes are the shapes

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the field's name for it
from torch.utils.checkpoint import checkpoint

from bloomery.config.model import ModelConfig
from training.attention import Attention, RmsNorm, Sight, rotary, sight
from training.collectives import gathered, part, scattered, summed
from training.loader import IGNORED
from training.mesh import Mesh, Peers
from training.moe import MixtureOfExperts, SwiGlu

ALONE = Mesh()


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward, each on the normed residual."""

    def __init__(self, config: ModelConfig, number: int, mesh: Mesh) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(config.width, config.norm_eps, mesh.tensor)
        self.attention = Attention(config, mesh)
        self.ffn_norm = RmsNorm(config.width, config.norm_eps, mesh.tensor)
        self.ffn: nn.Module
        if config.moe and config.is_sparse(number):
            self.ffn = MixtureOfExperts(config, config.moe, mesh)
        else:
            self.ffn = SwiGlu(config.width, config.ffn_width, mesh.tensor)

    def forward(self, x_BTD: Tensor, turn: tuple[Tensor, Tensor], seen: Sight) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), turn, seen)
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out


class Vocabulary(nn.Module):
    """A table of the vocabulary, of which this rank has some rows: it embeds ids, and projects on tokens."""

    def __init__(self, vocab_size: int, width: int, peers: Peers) -> None:
        super().__init__()
        self.peers = peers
        self.first, last = peers.share(vocab_size)
        self.weight = nn.Parameter(torch.empty(last - self.first, width))

    def forward(self, x: Tensor) -> Tensor:
        """Ids [B, T] -> their rows [B, T/n, D]; activations [B, T/n, D] -> logits [B, T, V/n]."""
        if x.is_floating_point():
            return F.linear(gathered(x, self.peers), self.weight)
        if self.peers.size == 1:
            return F.embedding(x, self.weight)
        own_BT = (x >= self.first) & (x < self.first + len(self.weight))
        rows_BTD = F.embedding((x - self.first) * own_BT, self.weight)
        return scattered(rows_BTD * own_BT.unsqueeze(-1), self.peers)

    def losses(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy of each target in nats, fp32: [B, T].

        No rank sees all of the vocabulary (arXiv:1909.08053, section 3).
        """
        logits_BTV = logits_BTV.float()
        if self.peers.size == 1:
            losses = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
            return losses.view(targets_BT.shape)
        own_BT = (targets_BT >= self.first) & (targets_BT < self.first + logits_BTV.shape[-1])
        index_BT1 = ((targets_BT - self.first) * own_BT).unsqueeze(-1)
        target_BT = summed(logits_BTV.gather(-1, index_BT1).squeeze(-1) * own_BT, self.peers)
        return (self.normaliser(logits_BTV) - target_BT) * (targets_BT != IGNORED)

    def normaliser(self, logits_BTV: Tensor) -> Tensor:
        """Log of the softmax's normaliser, fp32: [B, T]."""
        logits_BTV = logits_BTV.float()
        if self.peers.size == 1:
            return logits_BTV.logsumexp(-1)
        top_BT = logits_BTV.detach().max(-1).values
        torch.distributed.all_reduce(top_BT, torch.distributed.ReduceOp.MAX, self.peers.group)
        return summed((logits_BTV - top_BT.unsqueeze(-1)).exp().sum(-1), self.peers).log() + top_BT


class Place(NamedTuple):
    """Which part of a logical weight a rank has."""

    shape: tuple[int, ...]
    """Of the whole."""
    offset: tuple[int, ...] = ()
    """Where its part begins, in each dimension."""
    sharded: bool = False
    """Whether other ranks of the tensor axis have other parts."""
    copy: bool = False
    """Whether a rank of another shard or stage has the same part and answers for it."""


class Decoder(nn.Module):
    """The model, or a stage of it: token ids [B, T] -> logits [B, T, V]."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, mesh: Mesh = ALONE, recompute: str = "none"
    ) -> None:
        super().__init__()
        self.config, self.vocab_size, self.mesh, self.recompute = config, vocab_size, mesh, recompute
        tied = config.tied_embeddings
        first, last = mesh.pipeline.share(config.layers)
        if mesh.first or (tied and mesh.last):
            self.embedding = Vocabulary(vocab_size, config.width, mesh.tensor)
        self.layers = nn.ModuleDict(
            {str(number): Layer(config, number, mesh) for number in range(first, last)}
        )
        if mesh.last:
            self.norm = RmsNorm(config.width, config.norm_eps, mesh.tensor)
        self.head = Vocabulary(vocab_size, config.width, mesh.tensor) if mesh.last and not tied else None
        self.output_scale = config.mup_base_width / config.width if config.scaling == "mup" else 1.0

    def forward(self, x: Tensor, position_BT: Tensor | None = None) -> Tensor:
        """Logits of the next token at each position, of this rank's part: [B, T, V].

        Args:
            x: token ids, [B, T]; in a later stage the activations of the one before, [B, T/n, D].
            position_BT: of each token in its document, 0 at its first; None where each row is one document.
        """
        config, documents = self.config, position_BT is not None
        if position_BT is None:
            position_BT = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        turn = rotary(part(position_BT, self.mesh.sequence), config.head, config.rope_theta)
        seen = sight(position_BT, documents, config.window, flex=x.is_cuda)
        if self.mesh.first:
            x = self.embedding(part(x, self.mesh.sequence))
        for layer in self.layers.values():
            x = self._layer(layer, x, turn, seen)
        if not self.mesh.last:
            return x
        logits: Tensor = self._out()(self.norm(x) * self.output_scale)
        return logits

    def _out(self) -> Vocabulary:
        return self.embedding if self.head is None else self.head

    def _layer(self, layer: nn.Module, x_BTD: Tensor, turn: tuple[Tensor, Tensor], seen: Sight) -> Tensor:
        if self.recompute == "none" or not torch.is_grad_enabled():
            out: Tensor = layer(x_BTD, turn, seen)
        elif self.recompute == "full":
            out = checkpoint(layer, x_BTD, turn, seen, use_reentrant=False)
        else:
            out = checkpoint(layer, x_BTD, turn, seen, use_reentrant=False, context_fn=_keep_products)
        return out

    def losses(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy of the targets of this rank's part in nats, 0 where there is none: [B, T]."""
        return self._out().losses(logits_BTV, part(targets_BT, self.mesh.sequence))

    def z_losses(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Square of the log of the softmax's normaliser, 0 where there is no target: [B, T].

        It keeps logits small (arXiv:2204.02311, section 5).
        """
        own_BT = part(targets_BT, self.mesh.sequence) != IGNORED
        return self._out().normaliser(logits_BTV).square() * own_BT

    def balance_loss(self) -> Tensor:
        """Mean of the loss of balance over layers, of the last forward pass: 1 where all is even."""
        losses = [m.balance for m in self.modules() if isinstance(m, MixtureOfExperts)]
        return torch.stack([loss for loss in losses if loss is not None]).mean()

    def weigh_balance(self, weight: float) -> None:
        """Has the backward pass add `weight` times the mean loss of balance over the layers of all stages."""
        sparse = sum(self.config.is_sparse(number) for number in range(self.config.layers))
        for module in self.modules():
            if isinstance(module, MixtureOfExperts):
                module.balance_weight = weight / sparse

    def follow_loads(self, group: Any = None, taken: bool = True) -> None:
        """After a step: moves the experts' biases by the loads of all replicas; or forgets them.

        Args:
            group: of the ranks that have the same weights, for other rows.
            taken: whether the step was.
        """
        sparse = [m for m in self.modules() if isinstance(m, MixtureOfExperts) and m.moe.bias_rate]
        loads = [module.load for module in sparse if module.load is not None]
        if loads and taken:
            load_LE = torch.stack(loads)
            if group is not None:
                torch.distributed.all_reduce(load_LE, group=group)
            for module, load_E in zip(sparse, load_LE, strict=True):
                module.follow_load(load_E)
        for module in sparse:
            module.load = None

    def initialise(self, seed: int, opened: Callable[[nn.Parameter], Any] = nullcontext) -> None:
        """Fresh weights, as GPT-2: normal of 0.02, projections into the residual less by sqrt(2 layers).

        With muP matrices between layers have less by the square root of the width, too (arXiv:2203.03466,
        Table 8). Each weight is drawn by its name, whole, so that it is the same on every mesh.

        Args:
            seed: of the run.
            opened: a context in which a weight can be written to.
        """
        for name, weight in self.named_parameters():
            with torch.no_grad(), opened(weight):
                weight.copy_(self.fresh(name, seed))

    def fresh(self, name: str, seed: int) -> Tensor:
        """This rank's part of a fresh weight, fp32."""
        place = self.place(name)
        if len(place.shape) == 1:
            return torch.ones(place.shape)
        std = 0.02 * math.sqrt(rate_factor(name, self.config))
        if name.endswith(RESIDUAL):
            std /= math.sqrt(2 * self.config.layers)
        key = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")
        whole = torch.empty(place.shape).normal_(0.0, std, generator=torch.Generator().manual_seed(key >> 1))
        size = self.get_parameter(name)
        shape = getattr(size, "ds_shape", size.shape)  # ZeRO-3 has taken the weight itself away
        return whole[tuple(slice(o, o + n) for o, n in zip(place.offset, shape, strict=True))]

    def place(self, name: str) -> Place:
        """Which part of a weight this rank has."""
        weight, mesh = self.get_parameter(name), self.mesh
        shape = list(getattr(weight, "ds_shape", weight.shape))
        offset, dim, wide = [0] * len(shape), _sharded_dim(name), mesh.tensor
        if dim is not None and mesh.tensor.size > 1:
            whole = self._whole(name)
            shape[dim], offset[dim] = whole, wide.share(whole)[0]
        if getattr(weight, "expert", False):
            offset[0] = mesh.expert.rank * shape[0]
            shape[0] *= mesh.expert.size
        sharded = dim is not None and wide.size > 1
        again = name == "embedding.weight" and not mesh.first
        return Place(tuple(shape), tuple(offset), sharded, again or (not sharded and wide.rank > 0))

    def _whole(self, name: str) -> int:
        """Size of the dimension that the tensor axis shares."""
        config = self.config
        if "attention" in name:
            return config.head * (
                config.kv_heads if name.endswith(("k.weight", "v.weight")) else config.heads
            )
        return config.ffn_width if "ffn" in name else self.vocab_size

    def places(self) -> Iterator[tuple[str, nn.Parameter, Place]]:
        """Each weight of this rank, by its logical name."""
        for name, weight in self.named_parameters():
            yield name, weight, self.place(name)


def _sharded_dim(name: str) -> int | None:
    """The dimension of a dense weight that the tensor axis shares; None: each rank has it whole."""
    if "norm" in name:
        return None
    return 1 if name.endswith(("attention.out.weight", "ffn.down.weight")) else 0


def _keep_products() -> tuple[Any, Any]:
    """For selective recomputation: what matrix products and attention gave is kept."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = [
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    ]
    found: tuple[Any, Any] = create_selective_checkpoint_contexts(kept)
    return found


RESIDUAL = ("attention.out.weight", "ffn.down.weight", "ffn.down", "ffn.shared.down.weight")
"""Projections into the residual stream."""


def rate_factor(name: str, config: ModelConfig) -> float:
    """What a weight's learning rate is multiplied by: with muP base / width of matrices in layers, else 1.

    Table 8 of arXiv:2203.03466, for Adam; its square root is the factor of the initial standard deviation.
    """
    between = name.startswith("layers.") and "norm" not in name
    return config.mup_base_width / config.width if config.scaling == "mup" and between else 1.0
