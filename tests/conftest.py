"""Fixtures that several suites share."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bloomery.config.run import Execution, SparkConfig
from bloomery.config.settings import Settings


def pytest_runtest_setup() -> None:
    """Has each test's S3 clients ask for credentials anew: a session keeps those of the test before."""
    if boto3 := sys.modules.get("boto3"):
        boto3.DEFAULT_SESSION = None  # type: ignore[attr-defined]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class SparkEngine:
    """A running Spark Connect server."""

    settings: Settings
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.settings.spark_port}"

    def execution(self, partitions: int = 2) -> Execution:
        """Execution config of stages that run on this engine."""
        return Execution(spark=SparkConfig(remote=self.url, partitions=partitions))

    def kill(self) -> None:
        """Ends the server and its Python workers as kill -9 does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running_engine(folder: Path, memory: str = "1g", master: str = "local[2]") -> Iterator[SparkEngine]:
    """Starts an engine on free ports, waits until it answers, and ends it."""
    from spark_jobs.engine import server_command

    settings = Settings(
        spark_port=free_port(), spark_ui_port=free_port(), spark_memory=memory, spark_master=master
    )
    command, environment = server_command(settings)
    with open(folder / "spark.log", "wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    engine = SparkEngine(settings, process)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", settings.spark_port)) == 0:
                    break
            assert process.poll() is None, (folder / "spark.log").read_text()[-3000:]
            time.sleep(0.1)
        yield engine
    finally:
        if process.poll() is None:
            engine.kill()


@pytest.fixture(scope="session")
def spark_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """The one Spark engine of a test session: started by the first test that asks for it."""
    with running_engine(tmp_path_factory.mktemp("spark")) as engine:
        yield engine
