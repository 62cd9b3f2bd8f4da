"""The demo from nothing to a release, downloads excluded, and the same again with nothing to do.

Prints seconds and peak memory of each stage, what Airflow adds, and the claims. `make bench-end_to_end`
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # the tests' deployment: services on free ports below a folder

from benchmarks.claims import Claim, report  # noqa: E402
from benchmarks.memory import pss, tree  # noqa: E402
from bloomery.airflow.catalogue import DATA_STAGES  # noqa: E402
from bloomery.artifacts.manifest import read_action, read_manifest  # noqa: E402
from bloomery.artifacts.store import LocalStore  # noqa: E402
from tests.deployment import Deployment  # noqa: E402

STAGES = (*DATA_STAGES[1:], "train", "evaluate", "export")


class Memory:
    """Peak proportional memory (PSS) of a process tree, sampled twice a second; in all and by label."""

    def __init__(self, root: psutil.Process) -> None:
        self.root, self.label = root, ""
        self.peak: dict[str, float] = defaultdict(float)
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while self.root.is_running():
            total = sum(pss(process.pid) for process in tree(self.root))
            for label in ("all", self.label):
                self.peak[label] = max(self.peak[label], total / 1e9)
            time.sleep(0.5)


def follow(deployment: Deployment, memory: Memory | None) -> float:
    """Seconds of `bloomery run configs/demo.yaml`; labels the memory by the stage that runs."""
    began = time.monotonic()
    command = [sys.executable, "-P", "-m", "bloomery.cli", "run", str(ROOT / "configs" / "demo.yaml")]
    run = subprocess.Popen(command, env=deployment.env, cwd=ROOT)
    while run.poll() is None:
        if memory:
            runs = deployment.client.call(
                "GET", "dags/~/dagRuns/~/taskInstances", params={"state": "running"}
            )
            memory.label = next((task["task_id"] for task in runs["task_instances"]), memory.label)
        time.sleep(0.5)
    if run.returncode:
        sys.exit(run.returncode)
    return time.monotonic() - began


def main() -> None:
    """Runs the demo twice in a deployment of its own."""
    with tempfile.TemporaryDirectory(prefix="bloomery-bench-") as folder:
        began = time.monotonic()
        with Deployment(Path(folder) / "home") as deployment:
            up = time.monotonic() - began
            memory = Memory(deployment.supervisor())
            whole = follow(deployment, memory)
            again = follow(deployment, None)
            rows = measure(deployment, LocalStore(deployment.home / "store"))
    print(f"\n{'stage':<14}{'task s':>8}{'body s':>8}{'Airflow s':>10}{'peak GB':>9}")
    for name, task, body in rows:
        peak = memory.peak.get(name, 0.0)
        print(f"{name:<14}{task:>8.1f}{body:>8.1f}{task - body:>10.1f}{peak:>9.2f}")
    overhead = sorted(task - body for _, task, body in rows)[len(rows) // 2]
    report(
        "end_to_end",
        [
            Claim("end_to_end_seconds", up + whole, 480),
            Claim("end_to_end_seconds_goal", up + whole, 300),
            Claim("peak_memory_gb", memory.peak["all"], 8),
            Claim("nothing_to_do_seconds", again, 20),
            Claim("airflow_seconds_a_stage", overhead, 3),
        ],
    )


def measure(deployment: Deployment, store: LocalStore) -> list[tuple[str, float, float]]:
    """(stage, seconds of its longest task, seconds of that stage's body) of the first run."""
    bodies: dict[str, float] = {}
    for key in store.keys("actions/"):
        action = read_action(store, key.removeprefix("actions/"))
        if action:
            name = read_manifest(store, action.manifest).spec.stage
            bodies[name] = max(bodies.get(name, 0.0), action.ended - action.began)
    found = deployment.client.call("GET", "dags/~/dagRuns/~/taskInstances", params={"limit": 1000})
    tasks: dict[str, float] = {}
    for task in found["task_instances"]:
        name = task["task_id"].split(".")[-1]
        tasks[name] = max(tasks.get(name, 0.0), task["duration"] or 0.0)
    return [(name, tasks[name], bodies[name]) for name in STAGES if name in bodies]


if __name__ == "__main__":
    main()
