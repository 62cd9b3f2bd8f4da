"""The one Spark engine that all data stages share: a Spark Connect server, and sessions on it.

A Spark process of its own costs a stage over 20 s; a warm shared one 2 s, if stages share a session: each one
has Python workers of its own, which import everything anew. Three traps are closed here: a killed client
leaves its query running (queries are tagged with the stage's key, and the next attempt ends what runs under
it); a dead server makes the client retry for ten minutes in silence (its policy is
capped); reused Python workers keep old code (restart the engine after a change of code).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bloomery.artifacts.stage import Context
from bloomery.config.settings import Settings, settings
from bloomery.errors import BloomeryError, TransientError
from spark_jobs.jars import delta_jars, s3a_jars
from spark_jobs.java import java_home

CLASSIC = "BLOOMERY_SPARK_CLASSIC"
"""Environment variable: 1 where this process is itself the driver, as under spark-submit."""
NAMESPACE = uuid.UUID("6f5c2a44-9d0b-4c38-9a52-5b1f3c1ce0a7")
PROGRESS_SECONDS = 2.0
SETTLE = 1.0
"""Seconds after an interrupt in which the query's Python workers end, too (spark.python.task.killTimeout)."""
GONE = ("UNAVAILABLE", "SESSION_CHANGED", "SESSION_NOT_FOUND", "OPERATION_NOT_FOUND", "failed to connect")
"""Marks of a server that is not there, or is another one than at the start."""
LOST = (
    "SparkContext was shut down",
    "OPERATION_CANCELED",
    "worker exited unexpectedly",
    "ExecutorLostFailure",
)
"""Marks of a query that ended through no fault of its own."""


class EngineError(TransientError):
    """The Spark engine is not there, or died under a query; it comes back, and a retry heals."""


class JobError(BloomeryError):
    """A Spark job failed for a reason of its own: the data or the code."""


def session_confs() -> dict[str, str]:
    """Settings that every driver of ours needs, whatever the cluster."""
    confs = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # A table of one commit needs one partition of its log, not 50.
        "spark.databricks.delta.snapshotPartitions": "1",
        # Bounds what a worker holds: 10,000 long documents a batch would be gigabytes.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2048",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    }
    return confs | _s3a_confs()


def _s3a_confs() -> dict[str, str]:
    """s3a:// as settings say; credentials come from the environment by the SDK's chain, never from a conf."""
    if not settings().store_uri.startswith("s3://"):
        return {}
    confs = {
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": os.environ.get("AWS_REGION", "us-east-1"),
        "spark.hadoop.fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        ),
    }
    if endpoint := settings().s3_endpoint:
        confs["spark.hadoop.fs.s3a.endpoint"] = endpoint
        confs["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
    return confs


def server_command(config: Settings) -> tuple[list[str], dict[str, str]]:
    """argv and environment of the Spark Connect server of this machine: a foreground process, on the
    loopback only.

    Raises:
        JavaError: no usable Java.
        JarsError: Delta's jars could not be fetched.
    """
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    java = java_home(config.home)
    jars = delta_jars(config.home, java)
    if config.store_uri.startswith("s3://"):
        jars += s3a_jars(config.home, java)
    confs = session_confs() | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(config.spark_port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.port": str(config.spark_ui_port),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(config.home / "spark" / "warehouse"),
        "spark.local.dir": str(config.home / "spark" / "local"),
        "spark.log.level": "WARN",
        # The work is done by Python workers: on one machine planning and compiling cost more than they save.
        # These three halve the engine's CPU time on a small corpus (cold 54 -> 30 s, warm 26 -> 14 s).
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",
        "spark.databricks.delta.stats.collect": "false",
        # A client that is gone is noticed, and the space of its query is given back, within minutes.
        "spark.connect.execute.manager.detachedTimeout": "1m",
        # An interrupted task's Python worker ends with it, not 2 s later.
        "spark.python.task.killTimeout": "100ms",
    }
    command = [
        str(spark_home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--name", "bloomery", "--master", config.spark_master),
        *("--driver-memory", config.spark_memory),
        *("--jars", ",".join(str(jar) for jar in jars)),
    ]
    for name, value in confs.items():
        command += ["--conf", f"{name}={value}"]
    environment = os.environ | {
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Workers must not import a user's folder that is named as one of our packages.
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return [*command, "spark-internal"], environment


@contextmanager
def session(context: Context) -> Iterator[Any]:
    """A Spark session for one attempt of a stage; what an earlier attempt left running has ended when it
    begins.

    Raises:
        EngineError: the engine does not answer, or dies meanwhile; within 10 s.
        JobError: a job failed for a reason of its own.
    """
    if os.environ.get(CLASSIC) == "1":
        yield _classic(context)
        return
    url = context.execution.spark.remote or f"sc://127.0.0.1:{settings().spark_port}"
    with _clear_errors(url):
        spark = _connect(url, context.key, context.execution.spark.partitions, context.log)
        try:
            spark.registerProgressHandler(_progress(context.log))
            if context.execution.spark.remote is None:
                context.log(f"Spark UI: http://127.0.0.1:{settings().spark_ui_port}")
            yield spark
        finally:
            _close(spark)


def _close(spark: Any) -> None:
    """Closes the session's channel only: the id of a released one could not be opened by the next stage.

    Once: pyspark's finaliser closes again, which shuts down a thread pool that all sessions of a process
    share, and hangs for ever where the collector runs it within another session's call (4.1.3).
    """
    spark.client.close()
    spark.client.close = lambda: None


def functions() -> Any:
    """pyspark's module of column functions that goes with `session`: Connect's own, or the classic one."""
    return _module("functions")


def windows() -> Any:
    """pyspark's `Window` that goes with `session`."""
    return _module("window").Window


def _module(name: str) -> Any:
    classic = os.environ.get(CLASSIC) == "1"
    return importlib.import_module(f"pyspark.sql.{name}" if classic else f"pyspark.sql.connect.{name}")


def _connect(url: str, key: str, partitions: int, log: Callable[[str], None]) -> Any:
    """The session that all stages share; what ran under the stage's key has ended.

    Runs of different `partitions` side by side may take each other's: that changes no byte, only who waits.
    """
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    for generation in range(100):
        identifier = uuid.uuid5(NAMESPACE, f"session {generation}")
        spark = SparkSession(f"{url}/;session_id={identifier}", userId="bloomery")
        spark.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=1500, jitter=100)])
        try:
            spark.addTag(f"stage-{key}")
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
            if spark.interruptTag(f"stage-{key}"):
                log("ended a query that an earlier attempt left running")
                time.sleep(SETTLE)
        except SparkConnectGrpcException as error:
            # The server has closed the session of this id, as after an hour's rest: nothing runs in it.
            if "SESSION_CLOSED" not in str(error):
                raise
            _close(spark)
        else:
            return spark
    raise EngineError(f"Spark engine {url} refuses every session", "restart the engine")


def _classic(context: Context) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"bloomery {context.attempt}")
    for name, value in session_confs().items():
        builder = builder.config(name, value)
    spark = builder.config(
        "spark.sql.shuffle.partitions", str(context.execution.spark.partitions)
    ).getOrCreate()
    context.log(f"Spark UI: {spark.sparkContext.uiWebUrl}")
    return spark


@contextmanager
def _clear_errors(url: str) -> Iterator[None]:
    """Turns what Spark Connect raises into our errors: a dead engine apart from a failed job."""
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectException

    remedy = "`bloomery up` starts it again; then retry or clear the task"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*RETRIES_EXCEEDED.*")
            yield
    except grpc.RpcError as error:
        raise EngineError(f"Spark engine {url} does not answer: {_first_line(error)}", remedy) from error
    except SparkConnectException as error:
        text = str(error)
        if any(mark in text for mark in GONE):
            raise EngineError(f"Spark engine {url} does not answer: {_first_line(error)}", remedy) from error
        if any(mark in text for mark in LOST):
            raise EngineError(f"Spark engine {url} lost this query: {_cause(text)}", remedy) from error
        raise JobError(
            f"a Spark job failed: {_cause(text)}", "the engine's log holds the whole trace"
        ) from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cause(text: str) -> str:
    """The line of a Spark error that says why: the error that a Python worker raised, else the first line."""
    ours, _, _ = text.partition("JVM stacktrace")
    lines = [line.strip() for line in ours.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    return (raised or lines or ["no message"])[-1 if raised else 0]


def _progress(log: Callable[[str], None]) -> Callable[..., None]:
    """A progress handler that says a line at most every two seconds, and none for what is quicker."""
    said = time.monotonic()

    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG001
        nonlocal said
        if done or stages is None or time.monotonic() - said < PROGRESS_SECONDS:
            return
        said = time.monotonic()
        listed = list(stages)
        tasks, finished = (
            sum(getattr(s, name) for s in listed) for name in ("num_tasks", "num_completed_tasks")
        )
        read = sum(s.num_bytes_read for s in listed)
        log(f"Spark: {finished} of {tasks} tasks done, {inflight_tasks} running, {read / 1e6:.1f} MB read")

    return handler
