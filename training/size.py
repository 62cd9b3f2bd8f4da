"""What a model's shape costs: parameters, FLOPs, bytes. Arithmetic only; tests hold it against the model."""

from __future__ import annotations

from dataclasses import dataclass

from bloomery.config.model import ModelConfig, Preset


@dataclass(frozen=True)
class Size:
    """Parameters of a model."""

    total: int
    active: int
    """Those that a token meets."""
    embedding: int
    """Of the vocabulary's tables: one where they are tied, else two."""
    lookup: int
    """Of the table that is only looked up in: no FLOP is spent on it."""
    attention: int
    """layers * heads * head width."""

    @classmethod
    def of(cls, model: ModelConfig, vocab_size: int) -> Size:
        """Counts a shape's parameters."""
        width, head = model.width, model.head
        attention = 2 * width * head * (model.heads + model.kv_heads) + (2 * head if model.qk_norm else 0)
        dense = 3 * width * model.ffn_width
        total = active = width  # the last norm
        for layer in range(model.layers):
            shared, routed, met = dense, 0, 0
            if model.moe and model.is_sparse(layer):
                expert = 3 * width * model.moe.ffn_width
                shared = model.moe.shared_experts * expert + model.moe.experts * width  # with the router
                routed, met = model.moe.experts * expert, model.moe.top_k * expert
            always = attention + 2 * width + shared
            total, active = total + always + routed, active + always + met
        embedding = vocab_size * width * (1 if model.tied_embeddings else 2)
        lookup = 0 if model.tied_embeddings else vocab_size * width
        heads = model.layers * model.heads * head
        return cls(total + embedding, active + embedding, embedding, lookup, heads)

    def flops(self, sequence_length: int, causal: bool = False) -> float:
        """FLOPs a token of training, forward and backward: 6 N + 12 L H K T (arXiv:2204.02311, appendix B).

        Args:
            sequence_length: T.
            causal: count only the half of attention that a causal mask leaves.
        """
        matrices = 6 * (self.active - self.lookup)
        return matrices + (6 if causal else 12) * self.attention * sequence_length

    def state_bytes(self, zero: int = 0, ranks: int = 1) -> float:
        """Bytes of weights, gradients and optimizer on each of `ranks` that share by a ZeRO stage (0-3).

        bf16 with fp32 masters: 2 weight, 2 gradient, 4 master, 8 moments a parameter (arXiv:1910.02054,
        section 3.1).
        """
        whole = {0: 16, 1: 4, 2: 2, 3: 0}[zero]
        return self.total * (whole + (16 - whole) / ranks)


def activation_bytes(model: ModelConfig, sequence_length: int, recompute: str = "none") -> float:
    """Bytes that a sequence's forward pass keeps for the backward one, bf16, attention not materialised.

    34 T D a layer of a feed-forward 4 D wide (arXiv:2205.05198, section 4): 18 T D, and 16 T D for its hidden
    activations, here as wide as they are. Recomputed in full a layer's input alone is kept, 2 T D; but for
    matrix products, what those gave.
    """
    hidden = model.ffn_width
    if model.moe:
        hidden = model.moe.ffn_width * (model.moe.top_k + model.moe.shared_experts)
    heads = model.head * (model.heads + 2 * model.kv_heads)
    kept = {
        "none": 18 * model.width + 8 * hidden,
        "selective": 6 * model.width + 4 * hidden + 2 * heads,
        "full": 2 * model.width,
    }[recompute]
    return float(sequence_length * model.layers * kept)


def describe(shape: Preset) -> dict[str, str]:
    """What a preset costs, for people."""
    model, length = shape.model, shape.sequence_length
    size = Size.of(model, shape.vocab_size)
    return {
        "parameters": f"{size.total:,}",
        "  that a token meets": f"{size.active:,}",
        "  of the vocabulary": f"{size.embedding:,}",
        "vocabulary": f"{shape.vocab_size:,}",
        "sequence": f"{length:,}",
        "GFLOP a token (PaLM)": f"{size.flops(length) / 1e9:,.2f}",
        "  causal": f"{size.flops(length, causal=True) / 1e9:,.2f}",
        "state, one GPU": _gib(size.state_bytes()),
        "  a GPU, ZeRO-1 on 8": _gib(size.state_bytes(1, 8)),
        "  a GPU, ZeRO-3 on 8": _gib(size.state_bytes(3, 8)),
        "  a GPU, ZeRO-3 on 64": _gib(size.state_bytes(3, 64)),
        "activations a sequence": _gib(activation_bytes(model, length)),
        "  all recomputed": _gib(activation_bytes(model, length, "full")),
        "released as": str(model.hf_class).removesuffix("ForCausalLM"),
        "shape of": shape.source,
    }


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB"
