"""A whole deployment for a test: Airflow, the Spark engine and MLflow on free ports, below a folder."""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from bloomery.airflow.client import AirflowClient, TaskState
from bloomery.cluster.credentials import credentials
from tests.words import WORDS

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_corpus(folder: Path, documents: int = 400, seed: int = 7) -> Path:
    """Documents of common words that pass the rules, a tenth of them duplicates, and one broken line."""
    chance = random.Random(seed)
    texts = []
    for number in range(documents):
        if number % 10 == 9:
            texts.append(chance.choice(texts))
            continue
        sentences = [
            " ".join(chance.choices(WORDS, k=chance.randint(6, 14))).capitalize() + "."
            for _ in range(chance.randint(12, 30))
        ]
        texts.append(" ".join(sentences))
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": str(i), "text": t, "url": f"https://example.org/{i}"}) for i, t in enumerate(texts)
    ]
    lines.insert(3, '{"id": "broken", "text": ')
    (folder / "part.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return folder


def write_config(path: Path, corpus: Path, name: str = "browser", **changes: Any) -> Path:
    """The config of a small run over `corpus`."""
    config = {
        "name": name,
        "corpus": {
            "snapshot": {"sources": [{"name": "made", "uri": str(corpus)}]},
            "tokenizer": {"vocab_size": 512},
            "dedup": {"held_out": 0.1},
            "clean": {"languages": [], "chain": ["document", "gopher"]},
        },
        "train": {
            "model": {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn_width": 128},
            "sequence_length": 64,
            "global_batch": 8,
            "steps": 120,
            "warmup_steps": 10,
        },
        "evaluate": {"max_tokens": 4096, "sample_tokens": 12},
        "execution": {"parallelism": {"ranks": 2, "micro_batch": 4, "checkpoint_every": 30}},
    }
    for key, value in changes.items():
        where = config
        *parents, last = key.split("__")
        for parent in parents:
            where = where.setdefault(parent, {})
        where[last] = value
    path.write_text(yaml.safe_dump(config))
    return path


class Deployment:
    """Started by `with`; everything that it started is gone afterwards."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        ports = ("AIRFLOW_PORT", "MLFLOW_PORT", "SPARK_PORT", "SPARK_UI_PORT")
        self.env = {
            **os.environ,
            **{f"BLOOMERY_{name}": str(free_port()) for name in ports},
            "BLOOMERY_HOME": str(home),
            "BLOOMERY_SPARK_MEMORY": "1500m",
            **environment,
        }
        self.url = f"http://127.0.0.1:{self.env['BLOOMERY_AIRFLOW_PORT']}"

    def bloomery(self, *arguments: str, check: bool = True, timeout: float = 900) -> str:
        """Runs the command line, and returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bloomery.cli", *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=ROOT,
        )
        if check and done.returncode:
            raise AssertionError(
                f"bloomery {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout + done.stderr

    def python(self, code: str) -> Any:
        """Runs code in a process of this deployment's environment; it prints JSON, which is returned."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def ask(self, expression: str) -> Any:
        """Value of an expression over `work` and `list_refs` in this deployment, through JSON."""
        imports = (
            "import json; from bloomery.airflow import work; from bloomery.artifacts.refs import list_refs"
        )
        return self.python(f"{imports}; print(json.dumps({expression}))")

    def __enter__(self) -> Deployment:
        self.bloomery("up", timeout=400)
        self.login = credentials(self.home)
        self.client = AirflowClient(self.url, self.login["user"], self.login["password"])
        self.client.await_dags(("corpus", "pretrain", "evaluate", "release"))
        return self

    def __exit__(self, *_: Any) -> None:
        supervisor = self.supervisor()
        tree = [supervisor, *supervisor.children(recursive=True)]
        self.bloomery("stop")
        _, left = psutil.wait_procs(tree, timeout=5)
        assert not left, f"left behind by stop: {left}"

    def supervisor(self) -> psutil.Process:
        """The supervisor's process."""
        return psutil.Process(int((self.home / "run" / "supervisor").read_text().split(" ")[1]))

    def processes(self, *words: str) -> list[psutil.Process]:
        """Processes of this deployment whose command line holds all `words`."""
        found = []
        for process in self.supervisor().children(recursive=True):
            try:
                if all(word in " ".join(process.cmdline()) for word in words):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def task(self, dag: str, run: str, task: str) -> TaskState | None:
        """A task instance, or None before there is one."""
        return next((t for t in self.client.tasks(dag, run) if t.task == task and t.state != "none"), None)

    def newest_run(self, dag: str) -> str | None:
        """Id of the newest run that was not made by the clock."""
        runs = self.client.call("GET", f"dags/{dag}/dagRuns", params={"order_by": "-run_after", "limit": 20})[
            "dag_runs"
        ]
        return next((run["dag_run_id"] for run in runs if run["run_type"] != "scheduled"), None)


def until(what: str, ask: Callable[[], Any], timeout: float = 240, pause: float = 0.3) -> Any:
    """Asks until the answer is true, and returns it; `what` names it when the time is over."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(pause)
    raise AssertionError(f"not within {timeout:.0f} s: {what}")
