"""Muon and the average of weights: the same on every mesh, and as their papers have them."""

from __future__ import annotations

import math

import pytest
import torch

from bloomery.config.parallel import ParallelConfig, refusals
from bloomery.config.training import TrainConfig
from tests.training.ranks import forked
from tests.training.test_parity import DENSE, EXPERTS, prove
from tests.training.test_ranks import history, reader
from tests.training.world import TINY
from training.loop import Run
from training.model import Decoder
from training.optim import Optimizer, orthogonal
from training.parallel import start_engine

MUON = DENSE.model_copy(update={"optimizer": "muon"})
MUON_EXPERTS = EXPERTS.model_copy(update={"optimizer": "muon"})


CELLS = {
    "alone": (MUON, {"ranks": 1}),
    "z1": (MUON, {"ranks": 2}),
    "z0": (MUON, {"ranks": 2, "zero_stage": 0}),
    "z2": (MUON, {"ranks": 4, "zero_stage": 2}),
    "pipeline": (MUON, {"ranks": 4, "pipeline": 2}),
    "sequence": (MUON, {"ranks": 2, "sequence": 2}),
    "experts": (MUON_EXPERTS, {"ranks": 2, "expert": 2}),
}
QUICK = ("z1", "pipeline", "experts")


@pytest.mark.parametrize(
    ("train", "mesh"),
    [
        pytest.param(*cell, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, cell in CELLS.items()
    ],
)
def test_muon_on_a_mesh_equals_one_process(ranks, train, mesh):
    """Matrices are cut between ranks, and put together for the step."""
    assert prove(ranks, train, mesh) < (1e-3 if train.model.moe else 1e-5)


@pytest.mark.parametrize("mesh", [{"tensor": 2}, {"zero_stage": 3}, {"offload_optimizer": True}])
def test_muon_is_refused_where_no_rank_has_a_whole_matrix(mesh):
    assert any("whole matrices" in why for why in refusals(MUON, ParallelConfig(ranks=2, **mesh)))


def test_muon_is_torchs_muon():
    """In bf16, as torch has it: five steps of every kind of matrix."""
    shapes = [(24, 60), (60, 24), (32, 32)]
    random = torch.Generator().manual_seed(1)
    first = [torch.randn(shape, generator=random) for shape in shapes]
    mine, theirs = ([torch.nn.Parameter(w.clone()) for w in first] for _ in range(2))
    train = TrainConfig(dtype="bf16", learning_rate=1e-2)
    ours = Optimizer([{"params": mine, "rule": "muon", "weight_decay": 0.1}], train)
    peer = torch.optim.Muon(theirs, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=random)
            other.grad = one.grad.clone()
        ours.step()
        peer.step()
    for one, other, begin in zip(mine, theirs, first, strict=True):
        assert (one - other).abs().max() < 0.05 * (one - begin).abs().max()


def test_newton_schulz_makes_matrices_orthogonal():
    stack = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(2))
    for found in (orthogonal(stack, torch.float32), orthogonal(stack.mT, torch.float32).mT):
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.6 and values.max() < 1.3
        assert torch.allclose(found[1], orthogonal(stack[1], torch.float32), atol=1e-6)


@pytest.mark.parametrize("mesh", [{"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 3}])
def test_the_average_follows_the_weights(ranks, mesh):
    """Of each rank's own elements, after five steps."""
    job = ranks.job(TINY.model_copy(update={"ema": 0.8}), ParallelConfig(ranks=2, micro_batch=2, **mesh))

    def body(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        inner = run.engine.deepspeed.optimizer
        inner = getattr(inner, "optimizer", inner)
        trail = []
        for _ in range(5):
            run.advance(stop=False)
            trail.append({key: value["ema"].clone() for key, value in inner.state.items()})
        for flat, last in trail[-1].items():
            assert math.isfinite(float(last.sum())) and not torch.equal(flat, last)
            assert torch.allclose(last, trail[-2][flat] * 0.8 + flat.detach() * 0.2, atol=1e-7)

    assert forked(2, job.logs, body) == [None, None]


def test_a_checkpoint_holds_the_average_beside_the_weights(ranks):
    """Of six steps each saved, recomputed from the weights; and a resume is bitwise."""
    train = TINY.model_copy(update={"ema": 0.7, "steps": 6, "warmup_steps": 1, "optimizer": "muon"})
    saving = ParallelConfig(ranks=2, micro_batch=2, checkpoint_every=1, keep_last=9)
    assert ranks.train(ranks.job(train, saving)) == [None, None]
    model = Decoder(train.model, reader(ranks, ranks.at(6)).index.vocab_size)
    model.initialise(train.seed)
    average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for step in range(1, 7):
        found = reader(ranks, ranks.at(step))
        for name, weight in found.weights():
            average[name].lerp_(weight, 0.3)
        for name, weight in found.weights("average"):
            assert torch.allclose(weight, average[name], atol=1e-6), (step, name)
    kinds = found.index.tensors
    assert kinds["layers.0.ffn.up.weight"].kinds == ("master", "exp_avg", "ema")
    assert kinds["embedding.weight"].kinds == ("master", "exp_avg", "exp_avg_sq", "ema")
    first = ranks.at(6).manifest.outputs
    assert ranks.train(ranks.job(train, saving, resume=ranks.at(3))) == [None, None]
    assert ranks.journal.head().manifest.outputs == first


def test_deterministic_kernels_train_alike(ranks):
    exact = TINY.model_copy(update={"deterministic": True})
    losses = []
    for train in (TINY, exact):
        assert ranks.train(ranks.job(train)) == [None, None]
        losses.append(history(ranks, ranks.journal.head()).loss)
    assert losses[0] == losses[1]
