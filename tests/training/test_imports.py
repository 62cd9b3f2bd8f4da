"""Models of the hub's layout, taken in: the same logits, and refusals that name what is wrong."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import LocalStore
from bloomery.config.training import InitConfig
from bloomery.shards.dataset import Dataset
from bloomery.shards.stream import TokenStream
from tests.training.ranks import Ranks
from tests.training.world import SPREAD, TINY
from training.checkpoint import Reader
from training.continuing import initial
from training.hf import ImportRefusedError
from training.imports import import_model
from training.model import Decoder

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def made(folder, kind, **changes):
    """A model of transformers with random weights, saved by transformers."""
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn_like(weight) * 0.2 if weight.dim() > 1 else torch.rand_like(weight) + 0.5
            )
    model.save_pretrained(folder, max_shard_size="40KB")
    return model


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {"rope_theta": 5e5}),
        ("Llama", {"tie_word_embeddings": True, "head_dim": 12}),
        ("Mistral", {"sliding_window": 6, "head_dim": 8}),
        ("Qwen3", {"head_dim": 16}),
        (
            "Mixtral",
            {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "head_dim": 8},
        ),
        ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [0]}),
    ],
)
def test_an_imported_model_gives_the_same_logits(tmp_path, kind, changes):
    theirs = made(tmp_path / "model", kind, **changes)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    store = LocalStore(tmp_path / "store")
    found = import_model(store, tmp_path / "model")
    assert import_model(store, tmp_path / "model").manifest == found.manifest
    weights = artifact(store, found.manifest, "weights")
    reader = Reader(weights.local(tmp_path), weights.output.digest)
    ours = Decoder(found.model, 97).eval()
    ours.load_state_dict(dict(reader.weights()))
    ids = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        theirs.set_attn_implementation("eager")
        expected, logits = theirs(ids).logits, ours(ids)
    assert expected.std() > 0.1
    assert (expected - logits).abs().max() < 1e-5 * max(1, expected.abs().max())
    assert found.parameters == sum(weight.numel() for weight in ours.parameters())


def changed(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"attention_bias": True}, "attention_bias True, with us False"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu', with us 'silu'"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters .*linear.*, with us .*default",
        ),
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures GPT2LMHeadModel"),
        ({"num_hidden_layers": 4}, r"no weight model.layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, r"model.layers.2.* is none of ours"),
        (
            {"intermediate_size": 48},
            r"makes a layers.0.ffn.gate.weight of \[40, 32\], config.json of \[48, 32\]",
        ),
    ],
)
def test_what_is_not_ours_is_refused_by_name(tmp_path, fields, said):
    made(tmp_path / "model", "Llama")
    changed(tmp_path / "model", **fields)
    with pytest.raises(ImportRefusedError, match=said):
        import_model(LocalStore(tmp_path / "store"), tmp_path / "model")


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path):
    made(tmp_path / "model", "Llama")
    victim = sorted((tmp_path / "model").glob("*.safetensors"))[0]
    tensors = load_file(victim)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[3] = math.nan
    save_file(tensors, victim, metadata={"format": "pt"})
    with pytest.raises(ImportRefusedError, match=f"{re.escape(name)} has numbers that are not finite"):
        import_model(LocalStore(tmp_path / "store"), tmp_path / "model")


def test_a_damaged_or_missing_file_is_refused_by_name(tmp_path):
    made(tmp_path / "model", "Llama")
    store = LocalStore(tmp_path / "store")
    one = sorted((tmp_path / "model").glob("*.safetensors"))[1]
    whole = one.read_bytes()
    one.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImportRefusedError, match=r"model.safetensors.index.json: .+"):
        import_model(store, tmp_path / "model")
    one.unlink()
    with pytest.raises(ImportRefusedError, match=r"No such file"):
        import_model(store, tmp_path / "model")
    with pytest.raises(ImportRefusedError, match="no such file"):
        import_model(store, tmp_path / "nothing")
    assert not list(store.keys("actions/"))


def imported(world, folder, tokenizer):
    """A model for a tokenizer, taken into the world's store, and the config of a run that begins with it."""
    entries = Tokenizer.from_str(tokenizer.decode()).get_vocab_size()
    made(folder / "model", "Llama", vocab_size=entries, tie_word_embeddings=True)
    (folder / "model" / "tokenizer.json").write_bytes(tokenizer)
    found = import_model(world.store, folder / "model")
    init = InitConfig(checkpoint=found.manifest)
    return TINY.model_copy(update={"model": found.model, "init_from": init})


@pytest.mark.parametrize("stage", [1, pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_run_begins_with_the_imported_weights(world, tmp_path, stage, capfd):
    tokenizer = artifact(world.store, world.upstream["tokenizer"], "tokenizer").read()
    train = imported(world, tmp_path, tokenizer)
    ranks = Ranks(world, tmp_path / "ranks", f"{stage}" * 63 + "e")
    first = initial(world.store, train.init_from, tmp_path)
    job = ranks.job(train, SPREAD.model_copy(update={"zero_stage": stage}), initial=first)
    assert ranks.train(job) == [None, None]
    assert f"from step 0 with the weights of {train.init_from.checkpoint[:12]}\n" in capfd.readouterr().out
    head = ranks.journal.head()
    lines = [json.loads(line) for line in job.metrics.read_text().splitlines()]
    held_out = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    weights = ranks.journal.weights(head)
    assert Reader(weights.local(tmp_path), weights.output.digest).index.updates == 20

    again = imported(world, tmp_path / "again", tokenizer)
    assert again == train
    reader = Reader(first.folder, first.digest)
    model = Decoder(train.model, reader.index.vocab_size)
    model.load_state_dict(dict(reader.weights()))
    assert held_out[0] == pytest.approx(loss_of(model, ranks.job(train)), abs=1e-5)
    assert held_out[-1] < held_out[0] - 0.5


def loss_of(model, job):
    """Held-out loss in plain torch."""
    stream = TokenStream.of(Dataset.open(job.shards), "held_out")
    rows = stream.gather(np.arange(TINY.held_out_sequences), TINY.sequence_length)
    tokens = torch.from_numpy(rows.tokens)
    with torch.no_grad():
        losses = model.losses(model(tokens[:, :-1], torch.from_numpy(rows.positions)), tokens[:, 1:])
    return float(losses.mean())


def test_weights_that_do_not_fit_are_refused_by_name(world, tmp_path, ranks):
    tokenizer = artifact(world.store, world.upstream["tokenizer"], "tokenizer").read()
    train = imported(world, tmp_path, tokenizer)
    wide = train.model_copy(update={"model": train.model.model_copy(update={"ffn_width": 44})})
    momentum = train.init_from.model_copy(update={"optimizer": True})
    other = imported(world, tmp_path / "other", tokenizer + b"\n")
    cases = [
        (wide, r"layers.0.ffn.down.weight: checkpoint \[32, 40\], run \[32, 44\]"),
        (train.model_copy(update={"init_from": momentum}), "holds weights alone"),
        (other, "tokenizer: checkpoint [0-9a-f]{64}, run [0-9a-f]{64}"),
    ]
    for config, said in cases:
        job = ranks.job(config, SPREAD, initial=initial(world.store, config.init_from, tmp_path))
        ended = ranks.train(job)
        assert any(failure.kind == "RefusedError" for failure in ended)
        assert re.search(said, ended[0].what), ended[0].what
