"""The shared engine: no query outlives its attempt, a dead engine is told at once, failures say why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore
from bloomery.config.run import Execution, SparkConfig
from bloomery.errors import TransientError
from spark_jobs.engine import EngineError, JobError, server_command, session
from tests.conftest import free_port, running_engine

# The engine's workers cannot import the tests, as they should not: the functions below travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def context(folder: Path, execution: Execution, key: str = "key", said: list[str] | None = None) -> Context:
    return Context(
        config=None,
        inputs={},
        execution=execution,
        store=LocalStore(folder / "store"),
        key=key,
        attempt=f"data/test/{key}/1",
        fence=1,
        sources={},
        about={},
        scratch=folder,
        log=(said if said is not None else []).append,
    )


def beat(path: str, batches: Iterator[Any]) -> Iterator[Any]:
    """An endless task that leaves a sign of life."""
    for batch in batches:
        while True:
            Path(path).write_text(str(time.time()))
            time.sleep(0.05)
        yield batch


def fail(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        raise ValueError("row 7 is bad")
    yield from ()


def run_beat(folder: Path, execution: Execution, key: str) -> None:
    with session(context(folder, execution, key)) as spark:
        spark.range(1).mapInArrow(partial(beat, str(folder / "beat")), "id bigint").collect()


def wait_for(path: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.05)


def test_a_killed_attempts_query_ends_before_the_next_begins(tmp_path, spark_engine):
    code = (
        "import sys; from pathlib import Path; from tests.spark_jobs.test_engine import run_beat; "
        "from bloomery.config.run import Execution, SparkConfig; "
        f"execution = Execution(spark=SparkConfig(remote={spark_engine.url!r})); "
        f"run_beat(Path({str(tmp_path)!r}), execution, 'killed')"
    )
    root = str(Path(__file__).parents[2])
    client = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": root})
    wait_for(tmp_path / "beat")
    client.send_signal(signal.SIGKILL)
    client.wait()
    time.sleep(1)
    alive = (tmp_path / "beat").read_text()
    time.sleep(0.5)
    assert (tmp_path / "beat").read_text() != alive, "the server goes on with a killed client's query"
    said: list[str] = []
    with session(context(tmp_path, spark_engine.execution(), "killed", said)) as spark:
        assert "ended a query that an earlier attempt left running" in said
        assert spark.range(3).count() == 3
        time.sleep(1)
        ended = (tmp_path / "beat").read_text()
        time.sleep(0.5)
        assert (tmp_path / "beat").read_text() == ended


def test_another_stages_session_is_left_alone(tmp_path, spark_engine):
    with session(context(tmp_path, spark_engine.execution(), "one")) as one:
        frame = one.range(5)
        with session(context(tmp_path, spark_engine.execution(), "two")) as two:
            assert two.range(2).count() == 2
        assert frame.count() == 5


def test_collecting_a_finished_session_leaves_the_next_ones_threads_alone(tmp_path, spark_engine):
    """The finaliser of the first shut the pool of the second down, and hung in the middle of its call."""
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Iterating

    with session(context(tmp_path, spark_engine.execution(), "first")) as first:
        assert first.sql("SELECT 1").collect()
    with session(context(tmp_path, spark_engine.execution(), "second")) as second:
        assert second.sql("SELECT 2").collect()
        pool = Iterating._release_thread_pool_instance
        first.__del__()
        assert pool is not None
        assert Iterating._release_thread_pool_instance is pool
        assert second.sql("SELECT 3").collect()


def test_a_session_that_the_server_closed_is_opened_anew(tmp_path, spark_engine):
    with session(context(tmp_path, spark_engine.execution(), "closed")) as spark:
        spark.range(1).count()
        spark.client.release_session()
    with session(context(tmp_path, spark_engine.execution(), "closed")) as spark:
        assert spark.range(4).count() == 4


def test_an_absent_engine_is_told_within_10_seconds(tmp_path):
    execution = Execution(spark=SparkConfig(remote=f"sc://127.0.0.1:{free_port()}"))
    began = time.monotonic()
    with (
        pytest.raises(EngineError, match=r"Spark engine sc://127.0.0.1:\d+ does not answer"),
        session(context(tmp_path, execution)) as spark,
    ):
        spark.range(1).count()
    assert time.monotonic() - began < 10
    assert issubclass(EngineError, TransientError)


def test_an_engine_that_dies_under_a_query_is_told_within_10_seconds(tmp_path):
    import threading

    with running_engine(tmp_path) as engine:
        died: list[float] = []

        def kill() -> None:
            wait_for(tmp_path / "beat")
            engine.kill()
            died.append(time.monotonic())

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(EngineError):
            run_beat(tmp_path, engine.execution(), "dies")
        assert time.monotonic() - died[0] < 10
        killer.join()


def test_a_failed_job_says_why_in_one_line(tmp_path, spark_engine):
    here = context(tmp_path, spark_engine.execution())
    with (
        pytest.raises(JobError, match="a Spark job failed: ValueError: row 7 is bad"),
        session(here) as spark,
    ):
        spark.range(1).mapInArrow(fail, "id bigint").collect()
    with pytest.raises(JobError, match="no_such_column"), session(here) as spark:
        spark.range(1).select("no_such_column").collect()


def die(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from ()


def test_a_worker_that_dies_is_the_engines_fault_not_the_datas(tmp_path, spark_engine):
    here = context(tmp_path, spark_engine.execution())
    with pytest.raises(EngineError, match="lost this query"), session(here) as spark:
        spark.range(1).mapInArrow(die, "id bigint").collect()


def test_progress_is_said(tmp_path, spark_engine):
    said: list[str] = []
    with session(context(tmp_path, spark_engine.execution(), said=said)) as spark:
        spark.range(8, numPartitions=8).mapInArrow(slow, "id bigint").collect()
    assert any("of 8 tasks done" in line for line in said)


def slow(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(1)
        yield batch


def test_the_server_listens_on_the_loopback_only(spark_engine):
    import psutil

    listening = [
        c.laddr.ip
        for p in [psutil.Process(spark_engine.process.pid)]
        for c in p.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2 and {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_no_secret_is_on_the_command_line(monkeypatch, tmp_path):
    from bloomery.config.settings import Settings, settings

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setattr("spark_jobs.engine.s3a_jars", lambda home, java: [Path("aws.jar")])
    monkeypatch.setenv("BLOOMERY_STORE", "s3://bucket/prefix")
    monkeypatch.setenv("BLOOMERY_S3_ENDPOINT", "http://127.0.0.1:1")
    settings.cache_clear()
    try:
        command, environment = server_command(Settings())
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert "very-secret" not in " ".join(command) and environment["AWS_SECRET_ACCESS_KEY"] == "very-secret"
    assert "spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:1" in command
    assert any("aws.jar" in word for word in command)
