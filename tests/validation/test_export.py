"""An exported model is the checkpoint's, as transformers loads it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from bloomery.artifacts.run import artifact, run_stage
from bloomery.config.release import ExportConfig
from tests.validation.conftest import CONFIG
from training.checkpoint import Reader
from training.hf import hf_weights
from training.imports import import_model
from validation.evals.evaluate import load_model
from validation.release.export import save_weights
from validation.stages import EVALUATE, EXPORT


@pytest.fixture
def upstream(trained):
    measured = run_stage(
        EVALUATE,
        CONFIG.evaluate,
        {**trained.world.sources(), "checkpoint": trained.ranks.journal.head().digest},
        trained.world.store,
    )
    return {**trained.upstream, "evaluate": measured.digest}


def test_transformers_loads_it_with_equal_logits(trained, upstream, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    store = trained.world.store
    outcome = run_stage(EXPORT, ExportConfig(), upstream, store)
    folder = artifact(store, outcome.digest, "model").local(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    weights = artifact(store, trained.train, "checkpoint")
    ours = load_model(Reader(weights.local(tmp_path), weights.output.digest))
    text = "the smith melts the iron and then strikes it."
    ids = torch.tensor([tokenizer(text).input_ids])
    assert tokenizer.decode(ids[0]) == text
    with torch.no_grad():
        assert (theirs(ids).logits - ours(ids)).abs().max() < 1e-5
    assert theirs.dtype == torch.float32
    assert theirs.generation_config.eos_token_id == tokenizer.eos_token_id

    card = (folder / "README.md").read_text()
    score = json.loads(artifact(store, upstream["evaluate"], "eval").read())["bits_per_byte"]
    for fact in (f"{score:.4f}", weights.output.digest, "5,120 tokens in 20 steps", "31,032"):
        assert fact in card


def test_the_same_checkpoint_exports_the_same_bytes(trained, upstream):
    store = trained.world.store
    from bloomery.artifacts.run import invalidate

    first = run_stage(EXPORT, ExportConfig(), upstream, store)
    invalidate(store, first.manifest.spec.key, "to see it made again")
    again = run_stage(EXPORT, ExportConfig(), upstream, store)
    assert not again.hit
    assert again.manifest == first.manifest


def test_bf16_weights_are_rounded_masters(trained, upstream, tmp_path):
    store = trained.world.store
    outcome = run_stage(EXPORT, ExportConfig(dtype="bf16"), upstream, store)
    saved = load_file(artifact(store, outcome.digest, "model").local(tmp_path) / "model.safetensors")
    weights = artifact(store, trained.train, "checkpoint")
    masters = Reader(weights.local(tmp_path), weights.output.digest).weights()
    renamed = dict(hf_weights(CONFIG.train.model, masters))
    assert saved.keys() == renamed.keys()
    assert all(torch.equal(saved[name], weight.to(torch.bfloat16)) for name, weight in renamed.items())


def test_a_large_model_is_several_files_that_are_loaded_as_one(trained, upstream, tmp_path):
    from transformers import AutoModelForCausalLM

    store = trained.world.store
    outcome = run_stage(EXPORT, ExportConfig(), upstream, store)
    folder = tmp_path / "copy"
    shutil.copytree(artifact(store, outcome.digest, "model").local(tmp_path), folder)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    assert save_weights(folder, iter(whole.items()), most=40_000) == sum(w.numel() for w in whole.values())
    files = sorted(folder.glob("model-*.safetensors"))
    assert [path.name for path in files] == [
        f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)
    ]
    assert len(files) > 2
    held = [load_file(path) for path in files]
    assert all(len(part) == 1 or sum(w.nbytes for w in part.values()) <= 40_000 for part in held)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in theirs.state_dict().items():
        if name in whole:
            assert torch.equal(weight, whole[name])
    assert import_model(store, folder).parameters == sum(w.numel() for w in whole.values())
