"""Every shape has its class in transformers, which gives the same logits to 1e-5."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from bloomery.config.model import ModelConfig, MoeConfig
from training.hf import ExportError, hf_config, hf_weights
from training.model import Decoder

BASE = {"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 40}
MIXTRAL = MoeConfig(experts=4, top_k=2, ffn_width=24)
DEEPSEEK = MoeConfig(
    experts=6, top_k=3, ffn_width=24, shared_experts=2, dense_layers=1, renormalise=False, capacity=0.5
)
GLM = DEEPSEEK.model_copy(update={"bias_rate": 0.05})
QWEN = MoeConfig(experts=4, top_k=2, ffn_width=24, dense_layers=1, renormalise=False)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"tied_embeddings": False, "head_width": 12}),
        ("LlamaForCausalLM", {"scaling": "mup", "mup_base_width": 8}),
        ("MistralForCausalLM", {"window": 5}),
        ("Qwen3ForCausalLM", {"qk_norm": True, "window": 7, "head_width": 12}),
        ("Qwen3ForCausalLM", {"qk_norm": True, "tied_embeddings": False}),
        ("MixtralForCausalLM", {"moe": MIXTRAL}),
        ("MixtralForCausalLM", {"moe": MIXTRAL, "window": 6, "tied_embeddings": False}),
        ("Qwen2MoeForCausalLM", {"moe": DEEPSEEK, "tied_embeddings": False}),
        ("Qwen2MoeForCausalLM", {"moe": DEEPSEEK, "window": 4}),
        ("Qwen3MoeForCausalLM", {"moe": QWEN, "qk_norm": True}),
        ("Qwen3MoeForCausalLM", {"moe": MIXTRAL, "qk_norm": True, "window": 3}),
        ("Glm4MoeForCausalLM", {"moe": GLM, "tied_embeddings": False}),
        ("Glm4MoeForCausalLM", {"moe": GLM.model_copy(update={"renormalise": True}), "qk_norm": True}),
    ],
)
def test_transformers_gives_the_same_logits(kind, changes, tmp_path):
    from transformers import AutoModelForCausalLM

    config = ModelConfig.model_validate({**BASE, **changes})
    ours = Decoder(config, 97).eval()
    ours.initialise(3)
    with torch.no_grad():
        for weight in ours.parameters():  # far from initial, so that nothing hides in small numbers
            weight.copy_(weight * 8 if weight.dim() > 1 else torch.rand_like(weight) + 0.5)
        for bias in ours.buffers():
            bias.copy_(torch.randint(-9, 9, bias.shape))
    weights = {name: weight.detach().clone() for name, weight in ours.state_dict().items()}
    save_file(
        dict(hf_weights(config, weights.items())), tmp_path / "model.safetensors", metadata={"format": "pt"}
    )
    described = hf_config(config, 97, 64) | {"dtype": "float32", "bos_token_id": None, "eos_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(described))
    theirs, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager", experts_implementation="eager"
    )
    assert type(theirs).__name__ == kind
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    ids = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected, found = theirs(ids).logits, ours(ids)
    assert expected.std() > 0.1
    assert (expected - found).abs().max() < 1e-5 * max(1, expected.abs().max())


@pytest.mark.parametrize(
    "changes", [{"moe": QWEN}, {"moe": DEEPSEEK, "qk_norm": True}, {"moe": GLM, "window": 4}]
)
def test_a_shape_that_no_class_holds_is_refused(changes):
    config = ModelConfig.model_validate({**BASE, **changes})
    with pytest.raises(ExportError, match="no class of transformers holds experts"):
        hf_config(config, 97, 64)
