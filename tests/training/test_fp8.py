"""Products in fp8: near the exact ones, forward and backward, and a model learns with them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from bloomery.config.model import ModelConfig
from bloomery.config.parallel import ParallelConfig, refusals
from bloomery.config.training import TrainConfig
from tests.training.ranks import forked
from training.engine import Engine, Rows
from training.fit import check_fp8
from training.fp8 import use_fp8
from training.job import TrainingError
from training.parallel import start_engine

MODEL = ModelConfig(layers=2, width=64, heads=4, kv_heads=2, ffn_width=96)
TRAIN = TrainConfig(model=MODEL, sequence_length=32, dtype="fp8")


def test_products_and_gradients_are_near_the_exact_ones():
    layers = nn.Sequential(nn.Linear(64, 48, bias=False), nn.Linear(48, 32, bias=False)).bfloat16()
    x = torch.randn(4, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    found = []
    for _ in range(2):
        layers.zero_grad()
        x.grad = None
        out = layers(x)
        (out.float() * torch.linspace(-1, 1, 32)).sum().backward()
        found.append([out, x.grad, *(weight.grad for weight in layers.parameters())])
        use_fp8(layers)
    for exact, rounded in zip(*found, strict=True):
        apart = ((exact - rounded).float().norm() / exact.float().norm()).item()
        assert 1e-4 < apart < 0.12


@pytest.mark.parametrize("mesh", [{"ranks": 1}, {"ranks": 2, "tensor": 2, "zero_stage": 2}])
def test_a_model_learns_as_in_bf16(tmp_path, mesh):
    parallel = ParallelConfig(micro_batch=2, device="cpu", **mesh)
    assert not refusals(TRAIN, parallel)
    ids = torch.randint(0, 96, (2, 33), generator=torch.Generator().manual_seed(1))
    rows = [Rows(ids[:, :-1], torch.arange(32).int().expand(2, -1), ids[:, 1:])]

    def body(rank):
        start_engine("cpu")
        found = {}
        for dtype in ("bf16", "fp8"):
            engine = Engine.start(TRAIN.model_copy(update={"dtype": dtype}), parallel, 96)
            losses = []
            for _ in range(25):
                losses.append(engine.forward_backward(rows, 64) / 64)
                engine.step(3e-3, 1.0)
            found[dtype] = losses
        (tmp_path / f"{rank}.json").write_text(json.dumps(found))

    assert forked(parallel.ranks, tmp_path, body) == [None] * parallel.ranks
    found = json.loads((tmp_path / "0.json").read_text())
    assert found["fp8"] != found["bf16"]
    assert found["fp8"][-1] < found["fp8"][0] - 1
    assert abs(found["fp8"][-1] - found["bf16"][-1]) < 0.15


def test_what_fp8_needs_is_named():
    with pytest.raises(TrainingError, match=r"compute capability 9\.0 or more \(Hopper\), there is no GPU"):
        check_fp8(TRAIN, "cpu")
    check_fp8(TRAIN.model_copy(update={"dtype": "bf16"}), "cpu")
    odd = TRAIN.model_copy(update={"model": MODEL.model_copy(update={"ffn_width": 100})})
    assert refusals(odd, ParallelConfig()) == [
        "train.model.ffn_width / tensor 1 is 100: fp8 needs a multiple of 16"
    ]
