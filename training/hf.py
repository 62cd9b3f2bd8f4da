"""Our weights and shape as a class of transformers has them: a rename, in the layout that the hub keeps.

    LlamaForCausalLM        dense                      MixtralForCausalLM      experts
    MistralForCausalLM      ... with a window          Qwen3MoeForCausalLM     ... with qk_norm
    Qwen3ForCausalLM        ... with qk_norm           Qwen2MoeForCausalLM     ... with shared experts
                                                       Glm4MoeForCausalLM      ... whose bias follows loads

Qwen2-MoE weighs what its shared expert says by sigmoid(gate x): with a gate of zeros by 1/2, so that twice
its last projection is ours, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bloomery.config.model import HOLDS, ModelConfig, MoeConfig
from bloomery.errors import BloomeryError

_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
    "ffn.shared.gate.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn.shared.up.weight": "mlp.shared_expert.up_proj.weight",
    "ffn.shared.down.weight": "mlp.shared_expert.down_proj.weight",
    "ffn.router.weight": "mlp.gate.weight",
}
_TOP = {"embedding.weight": "model.embed_tokens", "norm.weight": "model.norm", "head.weight": "lm_head"}
_GLM = {
    f"ffn.shared.{part}.weight": f"mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")
}
_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


class ExportError(BloomeryError):
    """A shape that no class of transformers holds."""


def hf_weights(model: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Named weights by the names of the hub's layout, as they come; stacked experts one by one.

    Raises:
        ExportError: no class holds the shape.
    """
    kind = hf_class(model)
    logits = model.mup_base_width / model.width if model.scaling == "mup" else 1.0
    for name, weight in weights:  # muP's factor of the logits goes into the last norm
        yield from _renamed(model, kind, name, weight * logits if name == "norm.weight" else weight)


def _renamed(model: ModelConfig, kind: str, name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name in _TOP:
        yield f"{_TOP[name]}.weight", weight
        return
    _, number, rest = name.split(".", 2)
    layer = f"model.layers.{number}"
    if rest.removeprefix("ffn.") in _EXPERTS:
        part = rest.removeprefix("ffn.")
        inner = _MIXTRAL[part] if kind == "MixtralForCausalLM" else _EXPERTS[part]
        room = "block_sparse_moe" if kind == "MixtralForCausalLM" else "mlp"
        for expert, own in enumerate(weight):
            yield f"{layer}.{room}.experts.{expert}.{inner}.weight", own.contiguous()
    elif kind == "Glm4MoeForCausalLM" and rest in _GLM:
        yield f"{layer}.{_GLM[rest]}", weight
    elif rest == "ffn.bias" and model.moe:  # in steps of its rate
        yield f"{layer}.mlp.gate.e_score_correction_bias", weight.float() * model.moe.bias_rate
    elif rest == "ffn.router.weight" and kind == "MixtralForCausalLM":
        yield f"{layer}.block_sparse_moe.gate.weight", weight
    elif rest == "ffn.shared.down.weight":
        yield f"{layer}.{_LAYER[rest]}", weight * 2
        yield f"{layer}.mlp.shared_expert_gate.weight", torch.zeros(1, weight.shape[0], dtype=weight.dtype)
    else:
        yield f"{layer}.{_LAYER[rest]}", weight


def hf_class(model: ModelConfig) -> str:
    """The class that holds a shape.

    Raises:
        ExportError: none does.
    """
    if model.hf_class is None:
        raise ExportError("no class of transformers holds experts of this kind", HOLDS)
    return model.hf_class


def hf_config(model: ModelConfig, vocab_size: int, sequence_length: int) -> dict[str, Any]:
    """config.json of that class, without dtype and special tokens.

    Raises:
        ExportError: no class holds the shape.
    """
    kind, moe = hf_class(model), model.moe
    config: dict[str, Any] = {
        "architectures": [kind],
        "model_type": _MODEL_TYPES[kind],
        "vocab_size": vocab_size,
        "hidden_size": model.width,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head,
        "hidden_act": "silu",
        "max_position_embeddings": sequence_length,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "qkv_bias": False,
        "sliding_window": model.window,
        "use_sliding_window": model.window is not None,
    }
    if moe:
        config |= {
            "num_local_experts": moe.experts,
            "num_experts": moe.experts,
            "num_experts_per_tok": moe.top_k,
            "moe_intermediate_size": moe.ffn_width,
            "shared_expert_intermediate_size": moe.shared_experts * moe.ffn_width,
            "mlp_only_layers": list(range(moe.dense_layers)),
            "norm_topk_prob": moe.renormalise,
        }
    if moe and kind == "Glm4MoeForCausalLM":
        config |= {
            "n_routed_experts": moe.experts,
            "n_shared_experts": moe.shared_experts,
            "first_k_dense_replace": moe.dense_layers,
            "num_nextn_predict_layers": 0,
            "use_qk_norm": model.qk_norm,
        }
        config["rope_parameters"]["partial_rotary_factor"] = 1.0
    if kind.startswith("Qwen"):  # whose own default alternates
        config["layer_types"] = ["sliding_attention" if model.window else "full_attention"] * model.layers
    if kind == "MixtralForCausalLM" and moe:
        config["intermediate_size"] = moe.ffn_width
    return config


_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Glm4MoeForCausalLM": "glm4_moe",
}


class ImportRefusedError(BloomeryError):
    """A checkpoint of the hub's layout that is none of ours."""


IMPORTED = tuple(kind for kind in _MODEL_TYPES if kind not in ("Qwen2MoeForCausalLM", "Glm4MoeForCausalLM"))
"""Classes whose every model of the fields that we have is one of ours."""


def model_of(config: Any) -> ModelConfig:
    """The shape of a model of transformers.

    Args:
        config: its PretrainedConfig.

    Raises:
        ImportRefusedError: names the class, or the fields that our model has not.
    """
    kind = (config.architectures or ["none"])[0]
    if kind not in IMPORTED:
        raise ImportRefusedError(
            f"config.json: architectures {kind}", f"of these a model can be taken: {', '.join(IMPORTED)}"
        )
    moe = None
    if kind == "MixtralForCausalLM":
        moe = MoeConfig(
            experts=config.num_local_experts,
            top_k=config.num_experts_per_tok,
            ffn_width=config.intermediate_size,
        )
    elif kind == "Qwen3MoeForCausalLM":
        moe = MoeConfig(
            experts=config.num_experts,
            top_k=config.num_experts_per_tok,
            ffn_width=config.moe_intermediate_size,
            dense_layers=len(config.mlp_only_layers),
            renormalise=config.norm_topk_prob,
        )
    width, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or width // heads
    model = ModelConfig(
        layers=config.num_hidden_layers,
        width=width,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_width=None if head * heads == width else head,
        ffn_width=config.intermediate_size,
        rope_theta=config.rope_parameters["rope_theta"],
        norm_eps=config.rms_norm_eps,
        tied_embeddings=config.tie_word_embeddings,
        qk_norm=kind.startswith("Qwen3"),
        window=getattr(config, "sliding_window", None),
        moe=moe,
    )
    ours = hf_config(model, config.vocab_size, config.max_position_embeddings)
    differ = [
        f"{name} {getattr(config, name)!r}, with us {value!r}"
        for name, value in ours.items()
        if hasattr(config, name) and getattr(config, name) != value
    ]
    if differ:
        raise ImportRefusedError(
            f"config.json: {'; '.join(differ)}", "such a model cannot be trained here as it is"
        )
    return model


def hf_names(model: ModelConfig, name: str, shape: tuple[int, ...]) -> list[str]:
    """The hub's names of what makes one of our weights: of experts one each, else one."""
    with torch.device("meta"):
        return [theirs for theirs, _ in _renamed(model, hf_class(model), name, torch.empty(shape))]
