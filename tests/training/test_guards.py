"""Steps that would do harm: passed over on all ranks, or the run goes back; else as if they never were."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.artifacts.journal import Journal
from bloomery.config.training import GuardsConfig
from tests.training.ranks import Ranks, forked
from tests.training.test_ranks import history, reader
from tests.training.world import SPREAD, TINY, documents, make_world
from training.guards import Guard
from training.layout import EXCLUDED
from training.loop import Run, train
from training.provenance import open_run, replay, trace_document, trace_step

BF16 = TINY.model_copy(update={"dtype": "bf16"})
CELLS = {
    **{f"z{stage}": (TINY, {"zero_stage": stage}) for stage in (0, 1, 2, 3)},
    "bf16 z1": (BF16, {"zero_stage": 1}),
    "bf16 z2": (BF16, {"zero_stage": 2}),
    "pp2": (TINY, {"pipeline": 2}),
    "offload": (TINY, {"offload_optimizer": True, "zero_stage": 2}),
}


def with_a_bad_gradient(job, bad: dict[int, int]):
    """Ranks whose gradient of one weight is NaN in some steps: step -> the rank where."""

    def body(rank):
        run: Run | None = None

        def spoil(gradient):
            here = run is not None and bad.get(run.step) == rank
            return gradient * math.nan if here else gradient

        start = Run.start.__func__

        def started(cls, *about):
            nonlocal run
            run = start(cls, *about)
            next(w for name, w, _ in run.engine.model.places() if "ffn.up" in name).register_hook(spoil)
            return run

        Run.start = classmethod(started)
        train(job, rank, job.parallel.ranks)

    return forked(job.parallel.ranks, job.logs, body)


QUICK = ("z1", "z3", "pp2")


@pytest.mark.parametrize(
    ("config", "mesh"),
    [
        pytest.param(*cell, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, cell in CELLS.items()
    ],
)
def test_a_gradient_that_is_not_finite_on_one_rank_is_passed_over_on_all(world, tmp_path, config, mesh):
    """The run ends with the bytes of one that was told to pass over that step from the start."""
    parallel = SPREAD.model_copy(update=mesh)
    run = hashlib.sha256(f"{config.dtype} {mesh}".encode()).hexdigest()[:63]
    struck, told = Ranks(world, tmp_path / "struck", f"{run}a"), Ranks(world, tmp_path / "told", f"{run}b")
    job = struck.job(config, parallel)
    assert with_a_bad_gradient(job, {6: 1}) == [None, None]
    first = history(struck, struck.journal.head())
    assert [n for n, loss in enumerate(first.loss) if loss is None] == [6]
    assert first.marks[6] == EXCLUDED and first.grad_norm[6] is None
    index = reader(struck, struck.journal.head()).index
    assert [(e.step, e.why) for e in index.exclusions] == [(6, "gradient norm is nan")]
    assert index.updates == 19 and struck.journal.head().excluded == [6]
    assert '"steps_excluded": 1.0' in job.metrics.read_text()
    opened = open_run(world.store, struck.run, tmp_path / "cache", tmp_path / "tables", tokens=True)
    assert [found.step for found in replay(opened) if found.right] == list(range(20))
    document = trace_step(opened, 6)[0].document
    seen = {exposure.step: exposure.done for exposure in trace_document(opened, document)[1]}
    assert seen.pop(6) is False and all(seen.values())
    assert told.train(told.job(config, parallel, excluded={6: "gradient norm is nan"})) == [None, None]
    assert told.journal.head().manifest.outputs == struck.journal.head().manifest.outputs
    again = struck.job(config, parallel, resume=struck.at(10))
    assert struck.train(again) == [None, None]
    assert struck.journal.head().manifest.outputs == told.journal.head().manifest.outputs


def test_too_many_bad_steps_in_a_row_end_the_run(ranks):
    careful = TINY.model_copy(update={"guards": GuardsConfig(skips=2)})
    ended = with_a_bad_gradient(ranks.job(careful), {4: 0, 5: 1, 7: 0, 8: 0, 9: 1})
    assert all("step 10: gradient norm is nan; 3 steps in a row" in failure.what for failure in ended)


POISON = " ".join("zq%03d" % (37 * n % 1000) for n in range(45))  # noqa: UP031
GUARDS = GuardsConfig(spike="rewind", sigmas=4, window=10, rewind_steps=2)
LONG = TINY.model_copy(update={"steps": 70, "guards": GUARDS, "held_out_sequences": 40})
SAVING = SPREAD.model_copy(update={"checkpoint_every": 10, "keep_last": 20})


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """A world in which one document is like no other."""
    texts = documents(250)
    texts[100] = POISON
    return make_world(
        tmp_path_factory.mktemp("poisoned"), {"train": texts, "held_out": documents(60, seed=1)}
    )


def test_a_spike_ends_the_attempt_and_the_next_goes_on_before_it(poisoned, tmp_path):
    struck = Ranks(poisoned, tmp_path / "struck", "2" * 64)
    ended = struck.train(struck.job(LONG, SAVING))
    assert [failure.kind for failure in ended] == ["TrainingRewoundError"] * 2
    excluded = struck.journal.excluded()
    assert len(excluded) == GUARDS.rewind_steps + 1 and all(
        "sigma over the mean" in w for w in excluded.values()
    )
    standing = struck.standing(struck.journal.head())
    assert standing and all(found.step <= min(excluded) for found in standing)
    while ended != [None, None]:
        best = struck.standing(struck.journal.head())[0]
        ended = struck.train(struck.job(LONG, SAVING, resume=struck.at(best.step)))
    clean = Ranks(poisoned, tmp_path / "clean", "3" * 64)
    assert clean.train(clean.job(LONG, SAVING, excluded=struck.journal.excluded())) == [None, None]
    ours, theirs = struck.journal.head(), clean.journal.head()
    assert ours.manifest.outputs["weights"].digest == theirs.manifest.outputs["weights"].digest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_spike_takes_the_run_back_before_it(poisoned, home, tmp_path):
    """Through the launcher; the rest of the run is that of one that never saw the excluded batches."""
    lines: list[str] = []
    outcome = poisoned.train(LONG, SAVING, log=lines.append)
    said = "\n".join(lines)
    run = outcome.manifest.spec.key
    journal = Journal(poisoned.store, run)
    excluded = journal.excluded()
    assert excluded and journal.rewinds() >= 1, said
    assert "the run goes back before step" in said and "passed over: step" in said
    assert max(excluded) < 70 and min(excluded) > GUARDS.window - GUARDS.rewind_steps - 1
    assert poisoned.store.read(f"refs/runs/{run}/head").find(b"abandoned") > 0 or min(excluded) >= 60

    clean = Ranks(poisoned, tmp_path / "clean", "4" * 64)
    assert clean.train(clean.job(LONG, SAVING, excluded=excluded)) == [None, None]
    ours, theirs = journal.head(), clean.journal.head()
    assert ours.manifest.outputs["weights"].digest == theirs.manifest.outputs["weights"].digest


@given(st.lists(st.floats(0.1, 12), min_size=0, max_size=60), st.floats(0.1, 12))
def test_a_guard_that_begins_late_judges_as_one_that_saw_it_all(losses, loss):
    config = GuardsConfig(window=16, spike="skip")
    seen = Guard(config)
    for value in losses:
        if seen.judge(value, 1.0).taken:
            seen.taken(value)
        else:
            seen.passed_over()
    told = Guard(config)
    known = []
    for value in losses:
        taken = told.judge(value, 1.0).taken
        known.append(value if taken else None)
        told.taken(value) if taken else told.passed_over()
    assert Guard(config, known).judge(loss, 1.0) == seen.judge(loss, 1.0)
    assert Guard(config, known).skipped == seen.skipped


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_taken(value):
    for policy in ("log", "skip", "rewind"):
        guard = Guard(GuardsConfig(spike=policy))
        assert not guard.judge(value, 1.0).taken and not guard.judge(1.0, value).taken
        assert not guard.judge(value, 1.0).back


def test_a_spike_is_six_deviations_above_the_mean_of_the_window():
    random = np.random.default_rng(3)
    losses = (3 + 0.1 * random.standard_normal(200)).tolist()
    guard = Guard(GuardsConfig(spike="rewind"), losses)
    bound = np.mean(losses[-128:]) + 6 * np.std(losses[-128:])
    assert guard.judge(bound - 1e-9, 1.0).taken and not guard.judge(bound - 1e-9, 1.0).back
    assert guard.judge(bound + 1e-9, 1.0).back
    assert Guard(GuardsConfig(spike="rewind"), losses[:127]).judge(1e9, 1.0).taken
