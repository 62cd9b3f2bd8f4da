"""A Spark cluster, a standalone master and two workers, gives the bytes that the local engine gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyspark
import pytest

from bloomery.artifacts.store import LocalStore
from bloomery.config.settings import settings
from spark_jobs.java import java_home
from tests.conftest import free_port, running_engine
from tests.spark_jobs.conftest import ORDER, Pipeline
from tests.spark_jobs.corpus import write_corpus
from tests.spark_jobs.test_pipeline import GOLDEN

SPARK = Path(pyspark.__file__).parent
WORKERS = 2
MEMORY = "512m"
"""Of a worker, and of the executor that it runs."""


class Cluster:
    """A running master.

    Args:
        port: that drivers and workers join.
        page: port of its page.
    """

    def __init__(self, port: int, page: int) -> None:
        self.master, self._page = f"spark://127.0.0.1:{port}", page

    def state(self) -> dict[str, Any]:
        """What its page says, as JSON; empty while it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self._page}/json", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except URLError:
            return {}
        return found


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Starts a master and its workers on the loopback, waits until they have met, and ends them."""
    cluster = Cluster(port := free_port(), page := free_port())
    listen = ("--host", "127.0.0.1")
    with ExitStack() as stack:
        stack.enter_context(
            _daemon(folder, "master.Master", *listen, "--port", str(port), "--webui-port", str(page))
        )
        for number in range(WORKERS):
            place = ("--work-dir", str(folder / f"worker-{number}"), "--webui-port", "0")
            size = ("--cores", "1", "--memory", MEMORY)
            stack.enter_context(
                _daemon(folder / f"worker-{number}", "worker.Worker", *listen, *place, *size, cluster.master)
            )
        for _ in range(600):
            if cluster.state().get("aliveworkers") == WORKERS:
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"no {WORKERS} workers after a minute: {cluster.state()}")
        yield cluster


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    environment = os.environ | {
        "JAVA_HOME": str(java_home(settings().home)),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with open(folder / "daemon.log", "wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def spark_defaults(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str) -> None:
    """What engines that are started from here on read beside their own settings."""
    folder.mkdir()
    every = [f"spark.executor.memory {MEMORY}", "spark.ui.enabled false", *lines]
    (folder / "spark-defaults.conf").write_text("\n".join(every) + "\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_gives_the_same_digests(tmp_path, monkeypatch):
    spark_defaults(monkeypatch, tmp_path / "conf")
    write_corpus(tmp_path / "corpus")
    with (
        running_cluster(tmp_path) as cluster,
        running_engine(tmp_path, master=cluster.master) as engine,
    ):
        pipeline = Pipeline(LocalStore(tmp_path / "store"), tmp_path / "corpus", engine.execution)
        pipeline.run(*ORDER)
        (application,) = cluster.state()["activeapps"]
    assert application["cores"] == WORKERS
    executors = [list((tmp_path / f"worker-{number}").glob("app-*/*")) for number in range(WORKERS)]
    assert [len(found) for found in executors] == [1] * WORKERS, "both work, and no executor died"
    golden = json.loads(GOLDEN.read_text())["stages"]
    for name in ORDER:
        found = {output: o.digest for output, o in pipeline.outcomes[name].manifest.outputs.items()}
        assert found == golden[name]["outputs"], name
