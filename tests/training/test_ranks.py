"""Training on real ranks: parity, exact resume, any mesh, and every way to stop."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from bloomery.artifacts.digests import file_digest
from bloomery.config.model import ModelConfig, MoeConfig
from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import ScheduleConfig
from bloomery.shards.overlay import Overlay
from tests.training.ranks import Ranks, forked
from tests.training.world import MODEL, SPREAD, TINY, make_world
from training.checkpoint import Reader
from training.data import open_job
from training.job import TrainingError
from training.layout import HISTORY, History
from training.loader import FIRST_RECEIPT, chain, plan_steps, read_steps
from training.loop import Run
from training.model import Decoder
from training.optim import optimizer
from training.parallel import learning_rate, start_engine


def reader(ranks, checkpoint):
    weights = ranks.journal.weights(checkpoint)
    return Reader(weights.local(ranks.folder), weights.output.digest)


def history(ranks, checkpoint):
    return History.model_validate_json((reader(ranks, checkpoint).folder / HISTORY).read_bytes())


def one_process(job):
    """Plain torch: no DeepSpeed, no ranks, the whole batch at once."""
    train = job.train
    data, _ = open_job(job, Overlay())
    model = Decoder(train.model, data.dataset.manifest.policy.vocab_size)
    model.initialise(train.seed)
    adam = optimizer(model.places(), train)
    losses, norms, receipt, steps = [], [], FIRST_RECEIPT, data.feed.steps
    for step in range(steps):
        [batch] = read_steps(data, plan_steps(data, step, 1, 0, 1))
        targets = torch.from_numpy(batch.targets)
        logits = model(torch.from_numpy(batch.inputs), torch.from_numpy(batch.positions))
        own = targets >= 0
        loss = model.losses(logits, targets).sum() / own.sum()
        whole = loss + train.z_loss * logits.logsumexp(-1).square()[own].mean()
        if train.model.moe:  # of each micro-batch by itself, as ranks have them
            for rows in np.split(np.arange(len(targets)), len(targets) // job.parallel.micro_batch):
                model(torch.from_numpy(batch.inputs[rows]), torch.from_numpy(batch.positions[rows]))
                share = train.model.moe.balance_weight * len(rows) / len(targets)
                whole = whole + share * model.balance_loss()
        adam.zero_grad()
        whole.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)))
        for group in adam.param_groups:
            span, warmup = data.feed.span(step), data.feed.span(train.warmup_steps)[0]
            group["lr"] = learning_rate(span, warmup, data.feed.samples, train) * group["rate_factor"]
        adam.step()
        model.follow_loads()
        losses.append(loss.item())
        receipt = chain(receipt, step, str(batch.mark))
    return losses, norms, receipt.now, dict(model.named_parameters())


def test_two_ranks_equal_one_process(ranks):
    """20 steps, gradients accumulated and clipped at every step, rows cut between ranks."""
    job = ranks.job()
    assert ranks.train(job) == [None, None]
    losses, norms, receipt, weights = one_process(job)
    last = ranks.at(20)
    ours = history(ranks, last)
    assert min(norms) > job.train.clip
    assert np.abs(np.array(ours.loss) - losses).max() < 1e-5
    assert np.allclose(ours.grad_norm, norms, rtol=1e-4)
    assert last.receipt == receipt
    assert ours.loss[-1] < ours.loss[0] - 1
    for name, weight in reader(ranks, last).weights():
        assert (weight - weights[name]).abs().max() < 1e-4, name


@pytest.mark.parametrize(
    ("changes", "close"),
    [
        ({"qk_norm": True, "window": 9, "head_width": 8, "tied_embeddings": False}, 1e-5),
        ({"scaling": "mup", "mup_base_width": 12}, 1e-5),
        ({"moe": MoeConfig(experts=4, top_k=2, ffn_width=24, balance_weight=0.0)}, 1e-3),
        ({"moe": MoeConfig(experts=4, top_k=2, ffn_width=24, shared_experts=1, dense_layers=1)}, 1e-3),
    ],
    ids=["qk_norm, window", "mup", "experts", "shared experts, balance"],
)
def test_every_kind_of_model_equals_one_process(ranks, changes, close):
    """Routers have near ties: experts are held to 1e-3."""
    model = ModelConfig.model_validate({**MODEL.model_dump(), **changes})
    job = ranks.job(TINY.model_copy(update={"model": model, "z_loss": 1e-3}))
    assert ranks.train(job) == [None, None]
    losses, norms, receipt, _ = one_process(job)
    ours = history(ranks, ranks.at(20))
    assert ranks.at(20).receipt == receipt and min(norms) > job.train.clip
    assert np.abs(np.array(ours.loss) - losses).max() < close
    assert ours.loss[-1] < ours.loss[0] - 0.4


RAMPS = ScheduleConfig(
    packing="best_fit",
    batch=({"until_step": 3, "value": 5},),
    length=({"until_step": 6, "value": 8},),
)


@pytest.mark.parametrize(
    "train, width",
    [
        (TINY, 3),
        (TINY.model_copy(update={"schedule": RAMPS}), 2),
        (TINY.model_copy(update={"steps": None}), 2),
    ],
    ids=["three ranks", "packed, ramps", "token budget"],
)
def test_ranks_that_do_not_divide_the_batch_equal_one_process(ranks, train, width):
    """Rows are padded to equal micro-batches; the loss is the mean over all targets of the step."""
    job = ranks.job(train, ParallelConfig(ranks=width, micro_batch=2, checkpoint_every=100, device="cpu"))
    assert ranks.train(job) == [None] * width
    losses, norms, receipt, weights = one_process(job)
    last = ranks.journal.head()
    ours = history(ranks, last)
    assert last.receipt == receipt
    assert np.abs(np.array(ours.loss) - losses).max() < 1e-5
    assert np.allclose(ours.grad_norm, norms, rtol=1e-4)
    for name, weight in reader(ranks, last).weights():
        assert (weight - weights[name]).abs().max() < 1e-4, name


def test_all_ranks_read_around_damage_and_a_resume_knows_it(tmp_path):
    world = make_world(tmp_path / "store")
    ranks = Ranks(world, tmp_path / "ranks", "f" * 64)
    parallel = SPREAD.model_copy(update={"checkpoint_every": 12})
    job = ranks.job(parallel=parallel)
    victim = sorted((job.shards / "train" / "corpus").glob("*.bin"))[0]
    data = bytearray(victim.read_bytes())
    data[100] ^= 4
    victim.write_bytes(data)
    assert ranks.train(job) == [None, None]
    index = reader(ranks, ranks.journal.head()).index
    assert [entry.source for entry in index.overlay.quarantined] == ["corpus"]
    assert victim.name in (job.logs / "metrics.jsonl").read_text() or "tokens_lost" in job.metrics.read_text()
    first = ranks.journal.head()
    again = ranks.job(parallel=parallel, resume=ranks.at(12))
    assert ranks.train(again) == [None, None]
    assert ranks.journal.head().receipt == first.receipt
    assert ranks.journal.head().manifest.outputs == first.manifest.outputs
    resumed, _ = open_job(job, index.overlay)
    receipt = FIRST_RECEIPT
    for step in range(20):
        [batch] = read_steps(resumed, plan_steps(resumed, step, 1, 0, 1))
        assert not batch.damage or step < index.overlay.quarantined[0].since
        receipt = chain(receipt, step, str(batch.mark))
    assert receipt.now == first.receipt


def test_a_resume_that_reads_something_else_ends_at_the_first_step(ranks):
    ranks.train(ranks.job(), stop_at=4)
    ended = ranks.train(ranks.job(resume=ranks.at(4), receipts={5: "0" * 64}))
    assert {failure.kind for failure in ended} == {"TrainingError"}
    assert "step 5: an attempt before this one had receipt 0000" in ended[0].what

    job = ranks.job(resume=ranks.at(4))

    def other_receipt(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        run.receipt = run.receipt._replace(now="0" * 64)
        with pytest.raises(TrainingError, match="step 4: the checkpoint's run has receipt 0000"):
            run._check_last_step()

    assert forked(2, job.logs, other_receipt) == [None, None]


def test_ranks_that_are_apart_are_found_at_the_first_step(ranks):
    job = ranks.job()

    def apart(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        run.advance(stop=False)
        run.receipt = run.receipt._replace(now=f"{rank}" * 64)
        with pytest.raises(TrainingError, match="step 2: the ranks are not at one step of one run"):
            run.advance(stop=False)

    assert forked(2, job.logs, apart) == [None, None]


def test_resume_is_bitwise(ranks):
    whole = ranks.job(parallel=SPREAD.model_copy(update={"keep_last": 9}))
    assert ranks.train(whole) == [None, None]
    undisturbed = {step: ranks.at(step).manifest.outputs["weights"].digest for step in (5, 10, 15, 20)}
    assert ranks.train(ranks.job(resume=ranks.at(5))) == [None, None]
    resumed = {c.step: c.manifest.outputs["weights"].digest for c in ranks.journal.live()[-3:]}
    assert resumed == {step: undisturbed[step] for step in (10, 15, 20)}


def test_a_stop_saves_the_step_on_all_ranks(ranks):
    job = ranks.job()
    ended = ranks.train(job, stop_at=8)
    assert [failure.kind for failure in ended] == ["TrainingStoppedError"] * 2
    assert ranks.journal.head().step == 8
    assert ranks.train(ranks.job(resume=ranks.at(8))) == [None, None]
    assert ranks.journal.head().step == 20


def test_losses_that_stay_not_finite_end_all_ranks(ranks):
    hot = TINY.model_copy(update={"learning_rate": 1e30, "warmup_steps": 1})
    ended = ranks.train(ranks.job(hot, SPREAD.model_copy(update={"checkpoint_every": 1})))
    assert [failure.kind for failure in ended] == ["TrainingError"] * 2
    found = re.match(
        r"step 7: (loss|gradient norm) is (nan|inf); 6 steps in a row were passed over", ended[0].what
    )
    assert found, ended[0].what


def test_a_rank_that_lost_its_run_publishes_nothing(ranks):
    job = ranks.job()
    ranks.journal.open(job.fence + 1)  # a later attempt
    ended = ranks.train(job)
    assert ended[0].kind == "FencedError"
    assert ranks.journal.head() is None


def test_bf16_resumes_bitwise(ranks):
    bf16 = TINY.model_copy(update={"dtype": "bf16"})
    assert ranks.train(ranks.job(bf16)) == [None, None]
    first = ranks.journal.head()
    assert ranks.train(ranks.job(bf16, resume=ranks.at(10))) == [None, None]
    assert ranks.journal.head().manifest.outputs == first.manifest.outputs
    assert history(ranks, first).loss[-1] < history(ranks, first).loss[0] - 0.5


def test_the_index_names_every_file(ranks):
    ranks.train(ranks.job(), stop_at=1)
    found = reader(ranks, ranks.at(1))
    files = {path.name: file_digest(path) for path in found.folder.iterdir() if path.name != "index.json"}
    assert files == found.index.files
    assert json.loads((found.folder / "index.json").read_bytes())["samples"] == TINY.global_batch
