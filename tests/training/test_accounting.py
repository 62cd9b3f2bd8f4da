"""Where the time of a run goes: every second once, over attempts."""

from __future__ import annotations

import io
import json
import time
from typing import NamedTuple, get_args

import numpy as np
import pytest
from rich.console import Console

from bloomery.config.parallel import ParallelConfig
from tests.training.ranks import forked
from tests.training.test_parity import EXPERTS
from tests.training.test_ranks import history
from tests.training.world import SPREAD, TINY
from training.accounting import Clock, Meter, Phase, by_layer, peak_flops
from training.loop import train
from training.metrics import cut
from training.size import Size
from training.watch import Seen, watch

PHASES = [f"{phase}_seconds" for phase in get_args(Phase)]

TICKS = 0.03
"""Seconds: of a run of seconds the kernel's ticks, in which a process's age is told, are more than 0.5 %."""


def lines(job):
    return [json.loads(line) for line in job.metrics.read_text().splitlines()]


class Wall(NamedTuple):
    """Seconds of rank 0 by a clock of the test's own; its process began between the two begins."""

    forked: float
    """From before the fork on."""
    lived: float
    """From its first statement on."""

    def holds(self, phases: float) -> bool:
        """Whether the phases are the wall time, within 0.5 %."""
        return (
            self.lived - max(TICKS, 0.005 * self.lived)
            < phases
            < self.forked + max(TICKS, 0.005 * self.forked)
        )


def trained(ranks, job, stop_at=None):
    """Runs a job: how its ranks ended, and rank 0's time."""
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401  else the fork waits for it

    before = time.time()

    def body(rank):
        began = time.time()
        calls = iter(range(1, 1 << 30))
        try:
            train(job, rank, job.parallel.ranks, stop=lambda: next(calls) == stop_at and rank == 0)
        finally:
            now = time.time()
            (job.logs / f"{rank}.wall").write_text(json.dumps([now - before, now - began]))

    ended = forked(job.parallel.ranks, job.logs, body)
    return ended, Wall(*json.loads((job.logs / "0.wall").read_text()))


def test_every_second_of_a_run_is_of_one_phase(ranks):
    """Of a run that stops, and of the attempt that goes on: sums within 0.5 % of wall time."""
    parallel = SPREAD.model_copy(update={"layers_every": 4, "profile": (3, 4)})
    first = ranks.job(parallel=parallel)
    _, wall = trained(ranks, first, stop_at=12)
    log = lines(first)
    spent = {phase: sum(line.get(phase, 0.0) for line in log) for phase in PHASES}
    assert wall.holds(sum(spent.values())), f"{spent} are not {wall}"
    assert all(spent[phase] > 0 for phase in PHASES)
    steps = [line for line in log if "loss" in line]
    assert sum(line["seconds"] for line in steps) < wall.lived

    second = ranks.job(parallel=parallel, resume=ranks.at(10)).model_copy(update={"metrics": first.metrics})
    cut(second.metrics, 10)
    before = len(lines(second))
    ended, wall = trained(ranks, second)
    assert ended == [None, None]
    log = lines(second)
    phases = sum(line.get(phase, 0.0) for line in log[before:] for phase in PHASES)
    assert wall.holds(phases), f"{phases} s are not {wall}"
    steps = [line for line in log if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 21))
    last = steps[-1]
    kept = sum(line["seconds"] for line in steps)
    assert last["goodput"] == pytest.approx(kept / (last["time"] - second.began), rel=0.01)
    assert last["progress"] == 1.0 and last["eta_seconds"] == 0.0
    assert last["goodput"] < 0.95, "start-up and the lost steps cost nothing?"
    assert last["tflops_per_rank"] > 0 and "mfu" not in last
    seen = Seen(first.metrics)
    seen.look()
    screen = Console(width=120, record=True, file=io.StringIO())
    watch(first.metrics, screen)
    shown = screen.export_text()
    assert seen.done and len(seen.losses) == 20 and "step 20" in shown and "100%" in shown
    assert all(name in shown for name in ("loss", "tokens/s", "goodput", "compute", "communication"))
    events = json.loads((first.logs / "trace-rank-0.json").read_text())["traceEvents"]
    assert any("mm" in event["name"] for event in events)


@pytest.mark.parametrize(
    ("config", "mesh"), [(TINY, {"ranks": 2, "zero_stage": 3}), (EXPERTS, {"ranks": 2, "expert": 2})]
)
def test_layers_norms_make_the_whole(ranks, config, mesh):
    job = ranks.job(config, ParallelConfig(micro_batch=2, layers_every=5, checkpoint_every=20, **mesh))
    assert ranks.train(job) == [None, None]
    norms = history(ranks, ranks.journal.head()).grad_norm
    found = {line["step"]: line for line in lines(job) if any(key.startswith("grad_norm/") for key in line)}
    assert sorted(found) == [5, 10, 15, 20]
    for step, line in found.items():
        parts = {key: value for key, value in line.items() if key.startswith("grad_norm/")}
        layers = [key for key in parts if "layer_" in key]
        assert len(layers) == config.model.layers and "grad_norm/embedding" in parts
        assert np.sqrt(sum(value**2 for value in parts.values())) == pytest.approx(norms[step - 1], rel=1e-6)


def test_the_innermost_phase_counts():
    clock = Clock()
    clock.begin()
    clock.take()
    with clock.phase("checkpoint"):
        time.sleep(0.02)
        with clock.phase("communication"):
            time.sleep(0.05)
    found = clock.take()
    assert 0.05 <= found["communication_seconds"] < 0.07
    assert 0.02 <= found["checkpoint_seconds"] < 0.04
    assert clock.take().keys() <= {"other_seconds"}


def test_a_meter_by_hand():
    size = Size.of(TINY.model, 411)
    meter = Meter.of(TINY, 411, 4, "NVIDIA H100 80GB HBM3", 10_000, time.time() - 100, 30.0)
    found = meter.step(1000, 5000, 2.0)
    assert found["tokens_per_second"] == 500
    assert found["mfu"] == pytest.approx(size.flops(32) * 500 / (4 * 989e12))
    assert found["mfu_causal"] == pytest.approx(size.flops(32, causal=True) * 500 / (4 * 989e12))
    assert found["goodput"] == pytest.approx(0.32, abs=1e-3)
    assert found["progress"] == 0.5 and found["eta_seconds"] == pytest.approx(100, abs=0.1)


def test_what_is_known_of_devices():
    assert peak_flops("NVIDIA H100 PCIe") == 756e12 and peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("") is None and peak_flops("NVIDIA GeForce GTX 1080") is None


def test_layers_are_named_in_order():
    assert by_layer({"layers.10.a": 9.0, "layers.2.b": 8.0, "layers.2.c": 8.0, "norm.weight": 4.0}) == {
        "grad_norm/layer_002": 4.0,
        "grad_norm/layer_010": 3.0,
        "grad_norm/norm": 2.0,
    }
