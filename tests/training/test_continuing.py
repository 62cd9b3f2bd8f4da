"""Runs that go on from others: longer ones, forks, and new ones with another's weights."""

from __future__ import annotations

import numpy as np
import pytest

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.run import artifact
from bloomery.config.model import MoeConfig
from bloomery.config.training import InitConfig, ScheduleConfig
from bloomery.errors import BloomeryError
from tests.training.ranks import Ranks
from tests.training.test_ranks import history, reader
from tests.training.world import SPREAD, TINY, make_world
from training.checkpoint import Reader
from training.continuing import initial
from training.layout import History

WSD = TINY.model_copy(update={"decay": "wsd", "decay_share": 0.2, "held_out_every": 10})
LIVE = SPREAD.model_copy(update={"keep_last": 20})


@pytest.fixture
def lonely(tmp_path):
    """A world that no other test trains in."""
    return make_world(tmp_path / "lonely")


def last(world, outcome) -> tuple[Journal, History, str]:
    journal = Journal(world.store, outcome.manifest.spec.key)
    weights = journal.weights(journal.head())
    found = Reader(weights.local(world.store.root), weights.output.digest)
    return (
        journal,
        History.model_validate_json((found.folder / "history.json").read_bytes()),
        weights.output.digest,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_longer_run_goes_on_where_it_would_have_been(lonely, home, tmp_path):
    """Its schedule is the same up to step 15 of 20, where the shorter one begins to decay."""
    shorter = Ranks(lonely, tmp_path / "shorter", "4" * 64)
    assert shorter.train(shorter.job(WSD, LIVE)) == [None, None]
    longer = WSD.model_copy(update={"steps": 30})
    lines: list[str] = []
    outcome = lonely.train(longer, LIVE, log=lines.append)
    journal, _, digest = last(lonely, outcome)
    assert any("steps 1 .. 15 are those of checkpoint" in line for line in lines), lines
    assert any("from step 15" in line for line in lines)
    assert [(c.step, c.adopted) for c in journal.live()][:3] == [
        (5, "prefix"),
        (10, "prefix"),
        (15, "prefix"),
    ]
    alone = Ranks(lonely, tmp_path / "alone", "5" * 64)
    assert alone.train(alone.job(longer, LIVE)) == [None, None]
    assert alone.journal.head().manifest.outputs["weights"].digest == digest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_longer_run_goes_on_from_an_older_checkpoint_where_the_newest_is_damaged(lonely, home, tmp_path):
    shorter = Ranks(lonely, tmp_path / "shorter", "4" * 64)
    assert shorter.train(shorter.job(WSD, LIVE)) == [None, None]
    newest = lonely.store.root / shorter.journal.weights(shorter.at(15)).place / "rank00000.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    lines: list[str] = []
    outcome = lonely.train(WSD.model_copy(update={"steps": 30}), LIVE, log=lines.append)
    *_, digest = last(lonely, outcome)
    assert any("from step 10" in line for line in lines), lines
    alone = Ranks(lonely, tmp_path / "alone", "5" * 64)
    assert alone.train(alone.job(WSD.model_copy(update={"steps": 30}), LIVE)) == [None, None]
    assert alone.journal.head().manifest.outputs["weights"].digest == digest


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_fork_changes_what_comes_after_a_step(lonely, home, tmp_path):
    """Another decay and another mixture of batches from step 10 on; the parent is named."""
    parent = Ranks(lonely, tmp_path / "parent", "6" * 64)
    assert parent.train(parent.job(WSD, LIVE)) == [None, None]
    start = parent.at(10)
    init = InitConfig(checkpoint=start.digest, optimizer=True, loader=True)
    changes = {"init_from": init, "decay": "linear", "min_learning_rate": 0.0, "learning_rate": 1e-3}
    outcome = lonely.train(WSD.model_copy(update=changes), LIVE)
    journal, ours, _ = last(lonely, outcome)
    theirs = history(parent, parent.journal.head())
    assert ours.loss[:11] == theirs.loss[:11] and ours.loss[11:] != theirs.loss[11:]
    assert ours.marks == theirs.marks
    first = journal.live()[0]
    assert (first.parent, first.adopted, first.step) == (start.digest, "fork", 10)
    weights = journal.weights(journal.head())
    index = Reader(weights.local(tmp_path), weights.output.digest).index
    assert index.updates == 20
    assert [(found.step, found.what) for found in index.allowed] == [(10, "config")]
    assert "decay: checkpoint 'wsd', run 'linear'" in index.allowed[0].difference

    other = {"schedule": ScheduleConfig(packing="best_fit"), "init_from": init}
    with pytest.raises(BloomeryError, match=r"steps 1 \.\. 10 read other samples than here"):
        lonely.train(WSD.model_copy(update=other), LIVE)
    with pytest.raises(BloomeryError, match=r"step 10, here 8 steps in all"):
        lonely.train(WSD.model_copy(update={"init_from": init, "steps": 8}), LIVE)
    nothing = init.model_copy(update={"checkpoint": "0" * 64})
    with pytest.raises(BloomeryError, match=r"init_from.checkpoint: 0{64} is no checkpoint"):
        lonely.train(WSD.model_copy(update={"init_from": nothing}), LIVE)


@pytest.mark.parametrize("optimizer", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_begins_with_anothers_weights(world, tmp_path, optimizer):
    parent = Ranks(world, tmp_path / "parent", f"{optimizer:d}" * 63 + "7")
    assert parent.train(parent.job(TINY, LIVE)) == [None, None]
    init = InitConfig(checkpoint=parent.at(20).digest, optimizer=optimizer)
    train = TINY.model_copy(update={"init_from": init, "seed": 5, "warmup_steps": 0})
    child = Ranks(world, tmp_path / "child", f"{optimizer:d}" * 63 + "8")
    job = child.job(train, LIVE, initial=initial(world.store, init, tmp_path))
    assert child.train(job) == [None, None]
    ours, theirs = history(child, child.at(20)), history(parent, parent.at(20))
    assert ours.held_out[0].loss == pytest.approx(theirs.held_out[-1].loss, abs=1e-6)
    assert ours.held_out[0].step == 0 and len(ours.loss) == 20
    assert reader(child, child.at(20)).index.updates == (40 if optimizer else 20)
    assert np.mean(ours.loss[-5:]) < np.mean(theirs.loss[-5:])
    # A later attempt goes on from its own checkpoint, not from the other's weights.
    again = child.job(train, LIVE, resume=child.at(10))
    assert child.train(again) == [None, None]
    assert (
        child.journal.head().manifest.outputs["weights"].digest
        == child.at(20).manifest.outputs["weights"].digest
    )
    assert history(child, child.journal.head()).loss == ours.loss
    assert (
        artifact(world.store, init.checkpoint, "weights").output.digest
        == parent.at(20).manifest.outputs["weights"].digest
    )


def test_experts_that_follow_their_load_begin_with_anothers_optimizer(world, tmp_path):
    """Their biases are buffers, which no optimizer keeps anything of."""
    moe = MoeConfig(experts=4, top_k=2, ffn_width=24, shared_experts=1, bias_rate=0.01)
    train = TINY.model_copy(update={"model": TINY.model.model_copy(update={"moe": moe})})
    parent = Ranks(world, tmp_path / "parent", "a" * 63 + "7")
    parent.train(parent.job(train, LIVE), stop_at=3)
    init = InitConfig(checkpoint=parent.at(3).digest, optimizer=True)
    child = Ranks(world, tmp_path / "child", "a" * 63 + "8")
    begins = train.model_copy(update={"init_from": init, "seed": 5})
    child.train(child.job(begins, LIVE, initial=initial(world.store, init, tmp_path)), stop_at=2)
    assert reader(child, child.at(2)).index.updates == 5

    averaged = begins.model_copy(update={"ema": 0.9})
    ended = child.train(child.job(averaged, LIVE, initial=initial(world.store, init, tmp_path)))
    refused = next(failure for failure in ended if failure.kind == "RefusedError")
    assert "step 3 holds master, exp_avg, exp_avg_sq, not ema" in refused.what
    assert "train.init_from.optimizer: false" in refused.remedy
