"""Any mesh loads what any other saved: the same tensors bit by bit, and the same losses from there on."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from bloomery.config.parallel import ParallelConfig
from tests.training.ranks import forked
from tests.training.test_parity import CELLS
from tests.training.test_ranks import one_process, reader
from training.loop import Run
from training.parallel import start_engine


def groups():
    """Cells of one model, by the model's width and kind: only they can load each other's."""
    found: dict[str, list[str]] = {}
    for name, (train, _) in CELLS.items():
        found.setdefault(train.model_dump_json(), []).append(name)
    return list(found.values())


def go_on(ranks, name, resume=None, steps=2):
    """Trains some steps on a mesh, from a checkpoint that is saved again as soon as it is loaded."""
    train, mesh = CELLS[name]
    parallel = ParallelConfig(micro_batch=2, device="cpu", **mesh)
    job = ranks.job(train, parallel, resume=resume)

    def body(rank):
        start_engine("cpu")
        run = Run.start(job, rank, parallel.ranks)
        assert run.step == (resume.step if resume else 0)
        if resume:
            run.snapshot(stored=True)
        for _ in range(steps):
            run.advance(stop=False)
        run.snapshot(stored=True)
        run.saver.close()
        if rank == 0:
            (job.logs / "losses.json").write_text(json.dumps(run.losses[-steps:]))

    assert forked(parallel.ranks, job.logs, body) == [None] * parallel.ranks, name
    if resume:
        assert_same(reader(ranks, resume), reader(ranks, ranks.at(resume.step)))
    return job, json.loads((job.logs / "losses.json").read_text())


def assert_same(one, other):
    """Each logical tensor of two checkpoints, bit by bit."""
    assert one.index.tensors == other.index.tensors
    for name, tensor in one.index.tensors.items():
        for kind in tensor.kinds:
            assert torch.equal(one.read(name, kind), other.read(name, kind)), (name, kind)


def change(ranks, names):
    """Greatest difference of a loss between one process and a run that takes each step on another mesh."""
    losses, head = [], None
    for name in names:
        job, found = go_on(ranks, name, head, steps=1)
        losses += found
        head = ranks.journal.head()
    expected, *_ = one_process(job)
    return np.abs(np.array(losses) - expected[: len(losses)]).max()


def test_a_run_that_changes_its_mesh_ten_times_is_that_of_one_process(ranks):
    """10 random direct pairs: each mesh loads what the one before it saved, saves it again, and goes on."""
    names = random.Random(6).sample(max(groups(), key=len), 11)
    assert change(ranks, names) < 1e-5
    parts = [part for checkpoint in ranks.journal.live() for part in reader(ranks, checkpoint).index.parts]
    assert any(part.offset[-1] for part in parts), "no row was cut: the boxes were not exercised"


def test_a_run_with_experts_changes_its_mesh_and_keeps_their_biases(ranks):
    names = ("biased pp2 dp2", "biased ep2 dp4", "biased sp2 z3", "biased dp2")
    assert change(ranks, names) < 1e-3
    found = reader(ranks, ranks.journal.head())
    biases = [found.read(n, t.kinds[0]) for n, t in found.index.tensors.items() if t.kinds == ("buffer",)]
    assert len(biases) == 3 and all(bias.abs().sum() for bias in biases)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", CELLS)
def test_all_pairs(ranks, source):
    """From each cell to every other of its model."""
    train, _ = CELLS[source]
    job, _ = go_on(ranks, source)
    start = ranks.journal.head()
    expected, *_ = one_process(job)
    for target in next(group for group in groups() if source in group):
        _, found = go_on(ranks, target, start)
        apart = np.abs(np.array(found) - expected[2:4]).max()
        assert apart < (1e-3 if train.model.moe else 1e-5), (source, target, apart)
