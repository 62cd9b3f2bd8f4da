"""Checkpoints that survive: kills in mid-save, tiers, fences, damage, retention, and what does not match."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.journal import Retention
from bloomery.config.base import identity
from bloomery.config.model import ModelConfig
from tests.training.ranks import forked
from tests.training.test_ranks import history, reader
from tests.training.world import SPREAD, TINY
from training import engine as engine_module
from training.job import PeerFailedError
from training.layout import CheckpointError
from training.loop import Run, _gathered, train
from training.parallel import start_engine
from training.resume import choose
from training.saver import Saver
from training.writer import WriterDiedError

OFTEN = SPREAD.model_copy(update={"checkpoint_every": 2, "keep_last": 9})
LARGE = TINY.model_copy(
    update={"model": ModelConfig(layers=2, width=240, heads=6, kv_heads=3, ffn_width=500), "steps": 40}
)
"""Files that take a while to write: 10 MB a rank."""


def good(job):
    """What a run goes on from, as one rank sees it."""
    return choose(job, 0, 1, lambda wrong: [wrong])


def whole(ranks, memory=""):
    """Steps of everything that stands; each file of it is as its index says."""
    for standing in ranks.standing(memory=memory):
        job = ranks.job(memory=memory).model_copy(update={"standing": (standing,)})
        chosen = good(job)
        assert chosen and not chosen.refused
        for name in chosen.reader.index.files:
            chosen.reader.verified(name)
    return [standing.step for standing in ranks.standing(memory=memory)]


# Damage


@pytest.fixture(scope="module")
def saved(world, tmp_path_factory):
    """A run with checkpoints of steps 2, 4 and 6."""
    from tests.training.ranks import Ranks

    ranks = Ranks(world, tmp_path_factory.mktemp("saved"), "d" * 64)
    assert ranks.train(ranks.job(parallel=OFTEN), stop_at=6) != [None, None]
    assert [checkpoint.step for checkpoint in ranks.journal.live()] == [2, 4, 6]
    return ranks


def flip(path, draw, _):
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path, draw, _):
    os.truncate(path, draw.randrange(path.stat().st_size))


def half_write(path, draw, _):
    size, kept = path.stat().st_size, draw.randrange(path.stat().st_size - 64)
    path.write_bytes(path.read_bytes()[:kept] + bytes(size - kept))


def lose(path, *_):
    path.unlink()


def swap(path, _, other):
    path.write_bytes((other / path.name).read_bytes())


DAMAGES = (flip, truncate, half_write, lose, swap)


def test_each_of_100_random_damages_is_refused_by_name_and_the_last_good_one_is_used(saved):
    draw = random.Random(8)
    standing = saved.standing()
    for trial in range(100):
        bad = draw.choice([1, 1, 2])  # of the newest ones
        job = saved.job().model_copy(update={"standing": tuple(standing)})
        kept, victims = {}, []
        for number in range(bad):
            folder = standing[number].folder
            names = sorted(path.name for path in folder.iterdir())
            victims.append(folder / draw.choice(names))
            kept[victims[-1]] = victims[-1].read_bytes()
            DAMAGES[trial % len(DAMAGES)](victims[-1], draw, standing[-1].folder)
        try:
            chosen = good(job)
            assert chosen.standing == standing[bad], (trial, kept.keys())
            assert len(chosen.refused) == bad
            for victim, what in zip(victims, chosen.refused, strict=True):
                assert f"{victim.parent.name}/{victim.name}" in what, what
        finally:
            for path, data in kept.items():
                path.write_bytes(data)
    assert good(saved.job().model_copy(update={"standing": tuple(standing)})).standing == standing[0]


def test_a_run_of_which_no_checkpoint_is_good_does_not_start_anew(saved):
    standing = tuple(saved.standing()[:1])
    path = standing[0].folder / "index.json"
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    try:
        with pytest.raises(
            CheckpointError, match=r"none of the run's checkpoints is good: .*step 6.*index\.json"
        ):
            good(saved.job().model_copy(update={"standing": standing}))
    finally:
        path.write_bytes(data)


def test_a_run_goes_on_from_the_last_good_checkpoint_by_itself(ranks):
    """And its journal, log and metrics say so; it ends as one without damage."""
    assert ranks.train(ranks.job(parallel=OFTEN)) == [None, None]
    expected = ranks.journal.head().manifest.outputs
    victim = reader(ranks, ranks.at(20)).folder / "rank00001.safetensors"
    flip(victim, random.Random(1), None)
    job = ranks.job(parallel=OFTEN, resume=ranks.at(20))
    job = job.model_copy(update={"metrics": ranks.folder / "attempt-1" / "metrics.jsonl"})
    said = []

    def body(rank):
        train(job, rank, 2, say=said.append)
        (job.logs / f"said-{rank}").write_text("\n".join(said))

    assert forked(2, job.logs, body) == [None, None]
    assert "checkpoint of step 20 is refused" in (told := (job.logs / "said-0").read_text())
    assert str(victim) in told and "from step 18" in told
    assert ranks.journal.head().manifest.outputs == expected
    assert [c.step for c in ranks.journal.live()] == [4, 6, 8, 10, 12, 14, 16, 18, 20]
    ref = ranks.journal._ref().value
    assert [entry["why"] for entry in ref["abandoned"]] and "rank00001" in ref["abandoned"][0]["why"]
    lines = [json.loads(line) for line in job.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if "checkpoints_refused" in line] == [18]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 21))


# Kills


def test_no_kill_in_mid_save_leaves_a_half_checkpoint(ranks):
    """Writers are killed at any time of a save; then a rank; then all at once."""
    job = ranks.job(LARGE, OFTEN, memory="memory")
    draw = random.Random(5)
    kills = [(draw.randrange(2), draw.uniform(0, 0.15)) for _ in range(8)]

    def body(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        for victim, after in kills:
            try:
                for _ in range(2):  # of the first save the writer has started
                    run.saver.wait()
                    run.advance(stop=False)
                    run.snapshot(stored=True)
                if rank == victim:
                    time.sleep(after)
                    os.kill(run.saver.writer.pid, signal.SIGKILL)
                run.saver.wait()
            except (WriterDiedError, PeerFailedError):
                run.saver = Saver.start(job, run.engine, rank, 2, run.control)

    assert forked(2, job.logs, body) == [None, None]
    stood = whole(ranks, "memory")
    assert stood, "none was ever saved"

    def die(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        for _ in range(3):
            run.advance(stop=False)
            run.snapshot(stored=True)
        if rank in victims:
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        run.saver.wait()

    for victims in ({0}, {1}, {0, 1}):
        job = ranks.job(LARGE, OFTEN, memory="memory", resume=ranks.journal.head())
        forked(2, job.logs, die, killed=victims)
        assert whole(ranks, "memory")[0] >= stood[0]


def test_an_error_of_one_rank_while_it_loads_ends_all(ranks):
    """None waits in a collective for a rank that has given up."""
    ranks.train(ranks.job(), stop_at=2)
    job = ranks.job(resume=ranks.at(2))

    def body(rank):
        start_engine("cpu")
        run = Run.start(job.model_copy(update={"standing": ()}), rank, 2)
        chosen = choose(job, rank, 2, lambda wrong: _gathered(run.control, 2, wrong))
        if rank == 0:
            lose(chosen.reader.folder / "rank00001.safetensors")
        run._sum(0.0)
        run.resume(chosen)

    ended = forked(2, job.logs, body)
    assert [failure.kind for failure in ended] == ["PeerFailedError", "FileNotFoundError"]


def test_a_mapping_that_is_not_the_engines_is_noticed_before_anything_is_saved(ranks):
    """`round_robin_gradients` permutes it in silence: training is right, what is read is not."""
    parallel = SPREAD.model_copy(update={"zero_stage": 2})
    job = ranks.job(parallel=parallel)

    def body(rank):
        start_engine("cpu")
        whole = engine_module.deepspeed_config

        def robin(*about):
            config = whole(*about)
            config["zero_optimization"]["round_robin_gradients"] = True
            return config

        pytest.MonkeyPatch().setattr(engine_module, "deepspeed_config", robin)
        run = Run.start(job, rank, 2)
        run.advance(stop=False)
        run.snapshot(stored=True)
        run.saver.wait()

    ended = forked(2, job.logs, body)
    assert "CheckpointError" in {failure.kind for failure in ended}
    assert any("the model's copy differs from its master" in failure.what for failure in ended)
    assert ranks.journal.head() is None


# Tiers


MEMORY = SPREAD.model_copy(update={"checkpoint_every": 10, "memory_every": 4})


def crash_at(ranks, job, step):
    """Trains until both ranks are killed after a step."""

    def body(rank):
        steps = iter(range(1, 99))

        def stop():
            time.sleep(0.1)  # so that writers keep up
            if next(steps) > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        train(job, rank, 2, stop=stop)

    forked(2, job.logs, body, killed=(0, 1))


def test_a_snapshot_in_memory_outlives_its_ranks_and_ends_with_the_same_bytes(ranks):
    """If it is damaged, the other one is used, and then the store."""
    crash_at(ranks, ranks.job(parallel=MEMORY, memory="memory"), 19)
    first, second, third = found = tuple(ranks.standing(memory="memory"))
    assert first.step > second.step > third.step == 10
    assert not first.place and third.place, "the store has step 10"
    job = ranks.job(parallel=MEMORY, memory="memory").model_copy(update={"standing": found})
    whole_ones = {path: path.read_bytes() for one in (first, second) for path in one.folder.iterdir()}
    assert good(job).standing == first
    flip(first.folder / "rank00001.safetensors", random.Random(2), None)
    assert good(job).standing == second
    lose(second.folder / "history.json")
    assert good(job).standing == third
    for path, data in whole_ones.items():
        path.write_bytes(data)
    assert ranks.train(job) == [None, None]
    resumed = ranks.journal.head()
    assert resumed.step == 20
    fences = {one.fence for one in ranks.standing(memory="memory") if "memory" in str(one.folder)}
    assert fences == {job.fence}, "snapshots of the attempt before are dropped once newer ones stand"
    ranks.run = ranks.journal.run = "e" * 64
    assert ranks.train(ranks.job(parallel=SPREAD)) == [None, None]
    assert (
        ranks.journal.head().manifest.outputs["weights"].digest == resumed.manifest.outputs["weights"].digest
    )


def test_memory_of_an_attempt_that_another_overtook_is_not_used(ranks):
    crash_at(ranks, ranks.job(parallel=MEMORY, memory="one node"), 9)
    assert ranks.standing(memory="one node")[0].step in (4, 8)
    assert ranks.train(ranks.job(parallel=MEMORY, memory="another node"), stop_at=2) != [None, None]
    assert [one.step for one in ranks.standing(memory="one node")] == [2]


def test_an_attempt_that_lost_its_place_publishes_nothing_after_a_snapshot(ranks):
    """The journal moves on between the snapshot and the commit."""
    job = ranks.job()

    def body(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        run.advance(stop=False)
        os.kill(run.saver.writer.pid, signal.SIGSTOP)
        run.snapshot(stored=True)
        if rank == 0:
            ranks.journal.open(job.fence + 1)
        run._sum(0.0)
        os.kill(run.saver.writer.pid, signal.SIGCONT)
        run.saver.wait()

    ended = forked(2, job.logs, body)
    assert [failure.kind for failure in ended] == ["FencedError", "PeerFailedError"]
    assert ranks.journal.head() is None


# Retention


def test_retention_keeps_the_newest_the_periodic_and_the_best(ranks):
    parallel = SPREAD.model_copy(
        update={"checkpoint_every": 2, "keep_last": 1, "keep_every": 6, "keep_best": 2}
    )
    job = ranks.job(TINY.model_copy(update={"held_out_every": 4}), parallel)
    assert ranks.train(job) == [None, None]
    measured = {found.step: found.loss for found in history(ranks, ranks.journal.head()).held_out}
    assert measured[20] < measured[16] < measured[12]
    assert [checkpoint.step for checkpoint in ranks.journal.live()] == [6, 12, 16, 18, 20]
    assert ranks.at(16).score == measured[16] and ranks.at(18).score is None


@pytest.mark.parametrize("keep", [Retention(1), Retention(2, 4), Retention(1, None, 3), Retention(3, 2, 1)])
def test_retention_never_drops_the_newest(saved, keep):
    live = saved.journal.live()
    for count in range(1, len(live) + 1):
        kept = keep.kept(live[:count])
        assert live[count - 1] in kept and len(kept) >= min(count, keep.last)


# What does not match


def test_another_config_is_refused_with_the_difference_and_goes_on_if_it_is_allowed(ranks):
    ranks.train(ranks.job(), stop_at=2)
    other = TINY.model_copy(update={"weight_decay": 0.2})
    ended = ranks.train(ranks.job(other, resume=ranks.at(2)))
    assert {failure.kind for failure in ended} == {"RefusedError"}
    assert "config: weight_decay: checkpoint 0.1, run 0.2" in ended[0].what
    assert "allow: [config]" in ended[0].remedy
    allowing = SPREAD.model_copy(update={"allow": ("config",)})
    assert ranks.train(ranks.job(other, allowing, resume=ranks.at(2)), stop_at=2) != [None, None]
    [allowed] = reader(ranks, ranks.at(4)).index.allowed
    assert (allowed.step, allowed.what) == (2, "config")
    job = ranks.job(other, resume=ranks.at(4))
    chosen = good(job)
    assert chosen.reader.index.admit({"config": identity(other)}, ()) == ()


@pytest.mark.parametrize("section", ["code", "config", "dataset", "graph"])
def test_every_difference_is_named_and_allowed_by_its_section(saved, section):
    index = reader(saved, saved.at(6)).index
    facts = index.facts()
    assert index.admit(facts, ()) == ()
    name = sorted(facts[section])[0]
    for changed in ({**facts[section], name: "other"}, {**facts[section], "new": 1}):
        with pytest.raises(
            Exception, match=f"{section}: {name if 'new' not in changed else 'new'}: checkpoint"
        ):
            index.admit(facts | {section: changed}, {"code", "config", "dataset", "graph"} - {section})
        [allowed] = index.admit(facts | {section: changed}, {section})
        assert (allowed.step, allowed.what) == (6, section)


def test_the_code_of_a_checkpoint_is_that_of_its_files(saved):
    from pathlib import Path

    import training

    code = reader(saved, saved.at(6)).index.code
    path = Path(training.__file__).parent / "loop.py"
    assert code["training/loop.py"] == file_digest(path)[:16]
    assert {"torch", "deepspeed"} <= set(code)
