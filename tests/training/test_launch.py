"""The launcher: killed and stopped in every way, a run ends with the bytes of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.refs import list_refs
from bloomery.artifacts.store import LocalStore

ROOT = Path(__file__).parents[2]


class Task:
    """A running task and the lines that it prints."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "BLOOMERY_HOME": str(folder / "home"), "BLOOMERY_MLFLOW_PORT": "1025"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.task", str(folder / "store")],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, text: str) -> None:
        """Reads lines until one holds `text`."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return
        raise AssertionError(f"no line with {text!r}; the task said:\n" + "\n".join(self.lines))

    def tree(self) -> list[psutil.Process]:
        """Agent and ranks."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def rank(self, rank: int) -> psutil.Process:
        """The process of a rank."""
        for process in self.tree():
            if "training.main" in process.cmdline() and process.environ().get("RANK") == str(rank):
                return process
        raise AssertionError(f"no rank {rank}")

    def end(self, seconds: float = 60) -> str:
        """The last line, once the task has ended."""
        assert self.process.stdout
        self.lines += self.process.stdout.read().splitlines()
        self.process.wait(seconds)
        return "\n".join(self.lines)


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def head(folder: Path) -> int:
    store = LocalStore(folder / "store")
    run = next(ref.name.split("/")[1] for ref in list_refs(store, "runs/"))
    checkpoint = Journal(store, run).head()
    return checkpoint.step if checkpoint else 0


@pytest.mark.timeout(600)
def test_killed_and_stopped_it_ends_with_the_bytes_of_an_undisturbed_run(tmp_path):
    undisturbed = Task(tmp_path / "undisturbed")
    undisturbed.until("manifest ")
    expected = undisturbed.lines[-1].split()[1]
    undisturbed.end()

    disturbed = tmp_path / "disturbed"

    task = Task(disturbed)  # 1: a rank is killed
    task.until("checkpoint of step 10")
    tree = task.tree()
    assert len(tree) == 5, "an agent, two ranks, a writer of each"
    task.rank(1).kill()
    said = task.end()
    assert "TrainingCrashedError retry=True: rank 1: killed by SIGKILL" in said
    assert "rank-1.log" in said
    assert gone(tree, 5)
    assert head(disturbed) >= 10

    before = head(disturbed)
    task = Task(disturbed)  # 2: the task is stopped, as Airflow does
    task.until(f"from step {before}")
    task.until("step ")
    tree, asked = task.tree(), time.monotonic()
    task.process.send_signal(signal.SIGTERM)
    said = task.end()
    assert "TrainingStoppedError retry=True" in said
    assert time.monotonic() - asked < 30
    assert gone(tree, 1)
    assert head(disturbed) > before

    before = head(disturbed)
    task = Task(disturbed)  # 3: the task itself is killed; its ranks save and end
    task.until(f"from step {before}")
    task.until("step ")  # before its first step a rank has nothing new to save
    tree = task.tree()
    task.process.kill()
    assert gone(tree, 30)
    assert head(disturbed) > before

    task = Task(disturbed)  # 4: undisturbed to the end
    task.until("manifest ")
    assert task.lines[-1] == f"manifest {expected} hit=False"
    task.end()

    again = Task(disturbed)
    assert again.end() == f"manifest {expected} hit=True"
    metrics = next((disturbed / "home").rglob("metrics.jsonl")).read_text().splitlines()
    steps = [line.split(",")[0] for line in metrics if '"loss"' in line]
    assert steps == [f'{{"step": {step}' for step in range(1, 61)]


def test_a_run_that_cannot_go_on_ends_without_a_retry(world, home):
    from bloomery.errors import BloomeryError
    from tests.training.world import TINY

    hot = TINY.model_copy(update={"learning_rate": 1e30, "warmup_steps": 1})
    lines: list[str] = []
    with pytest.raises(BloomeryError, match=r"rank \d: TrainingError: step 7: .* 6 steps in a row") as caught:
        world.train(hot, log=lines.append)
    assert not caught.value.retry
    assert "lower train.learning_rate" in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_kills_at_random_points_end_with_the_bytes_of_an_undisturbed_run(tmp_path):
    undisturbed = Task(tmp_path / "undisturbed")
    undisturbed.until("manifest ")
    expected = undisturbed.lines[-1].split()[1]
    undisturbed.end()
    draw = random.Random(11)
    for _ in range(5):
        task = Task(tmp_path / "disturbed")
        time.sleep(draw.uniform(2, 20))
        tree = task.tree()
        task.process.kill()
        task.process.wait()
        assert gone(tree, 25)
    task = Task(tmp_path / "disturbed")
    assert f"manifest {expected}" in task.end(300)
