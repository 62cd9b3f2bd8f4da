"""The model's shape, and the shapes that have a name."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bloomery.config.base import Config

HOLDS = (
    "a bias_rate goes with shared_experts and no window; without it shared experts go without qk_norm, "
    "others with qk_norm, or with renormalise and no dense_layers"
)
"""What mixtures of experts some class of transformers holds."""


class MoeConfig(Config):
    """A mixture of experts in place of the feed-forward."""

    experts: int = Field(ge=2, description="routed experts E of a layer")
    top_k: int = Field(ge=1, description="routed experts of a token")
    ffn_width: int = Field(ge=8, description="hidden width of an expert's SwiGLU")
    shared_experts: int = Field(
        0, ge=0, description="experts of every token, as wide as a routed one (arXiv:2401.06066)"
    )
    dense_layers: int = Field(0, ge=0, description="first layers that have a dense feed-forward")
    renormalise: bool = Field(True, description="weights of a token's experts add up to 1 (Mixtral)")
    capacity: float | None = Field(
        None,
        gt=0,
        description="tokens an expert takes while it trains, in even shares; none: all (dropless)",
    )
    balance_weight: float = Field(
        0.01, ge=0, description="weight of the loss that spreads tokens evenly (arXiv:2101.03961)"
    )

    bias_rate: float = Field(
        0.0,
        ge=0,
        description="by how much an expert's bias moves a step towards even loads, scores being sigmoids; 0: "
        "no bias, softmax (arXiv:2408.15664, arXiv:2412.19437: 0.001, with a balance_weight of 0.0001)",
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} of {self.experts} experts")
        return self


class ModelConfig(Config):
    """A Llama-style decoder, dense or with experts."""

    layers: int = Field(4, ge=1, description="decoder layers")
    width: int = Field(256, ge=8, description="model width D")
    heads: int = Field(4, ge=1, description="query heads")
    kv_heads: int = Field(2, ge=1, description="key and value heads (GQA)")
    head_width: int | None = Field(None, ge=2, description="width of a head; none is width / heads")
    ffn_width: int = Field(688, ge=8, description="hidden width of SwiGLU")
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary embedding")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of RMSNorm")
    tied_embeddings: bool = Field(True, description="output projection shares the embedding")
    qk_norm: bool = Field(False, description="RMSNorm of each query and key (arXiv:2302.05442, Qwen3)")
    window: int | None = Field(
        None, ge=1, description="tokens that a token sees, itself among them; none: all"
    )
    moe: MoeConfig | None = Field(None, description="experts; none is a dense model")
    scaling: Literal["depth", "mup"] = Field(
        "depth",
        description="initial weights as GPT-2, less by depth; or by width, with rates (arXiv:2203.03466)",
    )
    mup_base_width: int = Field(256, ge=8, description="width at which muP changes nothing")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A preset's name stands for its shape."""
        if not isinstance(value, str):
            return value
        if value not in PRESETS:
            raise ValueError(f"{value!r} is no preset; allowed: {', '.join(PRESETS)}, or a mapping")
        return PRESETS[value].model.model_dump()

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.head_width is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.head % 2:
            raise ValueError(f"head width {self.head} is odd; rotary embedding needs an even one")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.moe and self.moe.dense_layers >= self.layers:
            raise ValueError(f"moe.dense_layers {self.moe.dense_layers} of {self.layers} layers leave none")
        return self

    @property
    def head(self) -> int:
        """Width K of a head."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def hf_class(self) -> str | None:
        """The class of transformers that holds this shape; None if none does."""
        moe = self.moe
        if moe is None:
            return _dense_class(self.qk_norm, self.window)
        if moe.bias_rate:
            return "Glm4MoeForCausalLM" if moe.shared_experts and self.window is None else None
        if self.qk_norm:
            return None if moe.shared_experts else "Qwen3MoeForCausalLM"
        if moe.shared_experts:
            return "Qwen2MoeForCausalLM"
        return "MixtralForCausalLM" if moe.renormalise and not moe.dense_layers else None

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.moe is not None and layer >= self.moe.dense_layers


def _dense_class(qk_norm: bool, window: int | None) -> str:
    if qk_norm:
        return "Qwen3ForCausalLM"
    return "LlamaForCausalLM" if window is None else "MistralForCausalLM"


class Preset(NamedTuple):
    """A shape that has a name."""

    model: ModelConfig
    vocab_size: int
    sequence_length: int
    source: str


def _llama_3(layers: int, width: int, heads: int, ffn_width: int) -> ModelConfig:
    return ModelConfig(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=8,
        ffn_width=ffn_width,
        rope_theta=5e5,
        tied_embeddings=False,
    )


PRESETS: dict[str, Preset] = {}
"""By name; `train: {model: 8b}` in a run's config."""
PRESETS |= {
    "demo": Preset(ModelConfig(), 4096, 256, "the demo"),
    "125m": Preset(
        ModelConfig(layers=12, width=768, heads=12, kv_heads=12, ffn_width=2048),
        *(50_304, 2048, "GPT-3 small's depth and width (arXiv:2005.14165, Table 2.1), as a Llama"),
    ),
    "1b": Preset(
        ModelConfig(layers=16, width=2048, heads=32, kv_heads=8, ffn_width=8192, rope_theta=5e5),
        *(128_256, 8192, "Llama 3.2 1B"),
    ),
    "8b": Preset(_llama_3(32, 4096, 32, 14_336), 128_256, 8192, "Llama 3 8B (arXiv:2407.21783, Table 3)"),
    "70b": Preset(_llama_3(80, 8192, 64, 28_672), 128_256, 8192, "Llama 3 70B (ibid.)"),
    "405b": Preset(_llama_3(126, 16_384, 128, 53_248), 128_256, 8192, "Llama 3 405B (ibid.)"),
    "moe-8x7b": Preset(
        _llama_3(32, 4096, 32, 14_336).model_copy(
            update={"rope_theta": 1e6, "moe": MoeConfig(experts=8, top_k=2, ffn_width=14_336)}
        ),
        *(32_000, 4096, "Mixtral 8x7B (arXiv:2401.04088, Table 1)"),
    ),
    "moe-16b": Preset(
        ModelConfig(
            layers=28,
            width=2048,
            heads=16,
            kv_heads=16,
            ffn_width=10_944,
            tied_embeddings=False,
            moe=MoeConfig(
                experts=64,
                top_k=6,
                ffn_width=1408,
                shared_experts=2,
                dense_layers=1,
                renormalise=False,
                balance_weight=0.001,
            ),
        ),
        *(102_400, 4096, "DeepSeekMoE 16B (arXiv:2401.06066, section 5.1)"),
    ),
}
