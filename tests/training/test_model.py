"""The decoder, and the config that spreads it."""

from __future__ import annotations

import pytest
import torch

from bloomery.config.training import ModelConfig, ParallelConfig, TrainConfig
from tests.training.world import MODEL
from training.model import Decoder, token_losses
from training.parallel import deepspeed_config, learning_rate


def model(**changes):
    made = Decoder(ModelConfig.model_validate({**MODEL.model_dump(), **changes}), 97)
    made.initialise(1)
    return made


def test_no_position_sees_the_future():
    made, ids = model(), torch.randint(0, 97, (2, 16))
    changed = ids.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 97
    before, after = made(ids), made(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_initial_weights_follow_from_the_seed():
    first, second = model().state_dict(), model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = model()
    other.initialise(2)
    assert not torch.equal(other.embedding.weight, first["embedding.weight"])


def test_an_untrained_model_guesses_evenly():
    ids = torch.randint(0, 97, (8, 33))
    loss = token_losses(model()(ids[:, :-1]), ids[:, 1:]).mean().item()
    assert loss == pytest.approx(torch.log(torch.tensor(97.0)).item(), abs=0.1)


def test_tied_embeddings_have_no_head():
    assert model().head is None
    assert model(tied_embeddings=False).head.weight.shape == (97, MODEL.width)


def test_learning_rate_warms_up_then_falls_to_the_minimum():
    train = TrainConfig(steps=100, warmup_steps=10, learning_rate=1e-3, min_learning_rate=1e-4)
    rates = [learning_rate(step, 100, train) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == rates[10] == 1e-3
    assert sorted(rates[10:], reverse=True) == rates[10:]
    assert rates[100] == pytest.approx(1e-4)


def test_bf16_accumulates_in_fp32():
    config = deepspeed_config(TrainConfig(dtype="bf16"), ParallelConfig(ranks=2, micro_batch=4))
    assert config["train_batch_size"] == 8
    assert config["zero_optimization"]["stage"] == 1
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
