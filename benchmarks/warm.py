"""A warm engine and stages on it: what a benchmark of the data plane times, without start-up."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import spark_jobs.stages
from benchmarks.memory import cpu_seconds
from bloomery.airflow.catalogue import DATA_STAGES, STAGES
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.run import Outcome, run_stage
from bloomery.artifacts.stage import Context, Stage
from bloomery.artifacts.store import LocalStore
from bloomery.config.base import Config
from bloomery.config.run import Execution, RunConfig
from bloomery.config.sources import SnapshotConfig, Source
from spark_jobs.engine import session
from spark_jobs.parts import Part, profile_of_parts, write_parts
from spark_jobs.snapshot import take
from spark_jobs.tables import FILE, write_table
from tests.conftest import running_engine

BASE = RunConfig.model_validate(
    {"name": "benchmark", "corpus": {"snapshot": {"sources": [{"name": "bench", "uri": "/nowhere"}]}}}
)


PLANE = tuple(name for name in DATA_STAGES[1:] if name in spark_jobs.stages.STAGES)
"""The stages of Spark from `ingest` on, in the DAG's order."""


class Texts(Config):
    """Where the texts stand."""

    folder: str


class Bench:
    """Stages in one store on one engine, each with its seconds.

    Args:
        folder: where the store is.
        execution: how stages reach the engine.
        engine: the engine's process id.
    """

    def __init__(self, folder: Path, execution: Execution, engine: int) -> None:
        self.folder, self.execution, self.engine = folder, execution, engine
        self.store = LocalStore(folder / "store")
        self.done: dict[str, str] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        """CPU seconds of the engine, its Python workers included, and of this process."""

    def run(self, stage: Stage | str, config: Config | None = None) -> Outcome:
        """Runs a stage on what was run before; a config that is not given is the default."""
        chosen = STAGES[stage] if isinstance(stage, str) else stage
        began, cpu = time.monotonic(), self._cpu()
        outcome = run_stage(
            replace(chosen, gates=()),
            config or BASE.section(chosen.config),
            self.done,
            self.store,
            execution=self.execution,
            about={"name": BASE.name},  # a run finds its last snapshot by it
            log=lambda line: print(f"  {line}", file=sys.stderr),
        )
        self.seconds[chosen.name] = time.monotonic() - began
        self.cpu[chosen.name] = self._cpu() - cpu
        self.done[chosen.name], self.outcomes[chosen.name] = outcome.digest, outcome
        times = f"{self.seconds[chosen.name]:.1f} s, {self.cpu[chosen.name]:.1f} CPU-s"
        print(f"  {chosen.name}: {times}", file=sys.stderr)
        return outcome

    def _cpu(self) -> float:
        return cpu_seconds(self.engine) + time.process_time()

    def take(self, folder: Path) -> None:
        """Takes a snapshot of a folder."""
        source = Source(name="bench", uri=str(folder))
        outcome = take(SnapshotConfig(sources=(source,)), self.store, None, lambda _: None)
        self.done["snapshot"] = outcome.digest

    def texts(self, folder: Path) -> None:
        """Takes a folder of JSON lines (id, text) for what `clean` has kept: all of it."""
        part = self.run(Stage("clean_part", 0, Texts, body="benchmarks.warm:load"), Texts(folder=str(folder)))
        self.run(Stage("clean", 0, Texts, body="benchmarks.warm:collect"), Texts(folder=part.digest))

    def survivors(self, folder: Path) -> None:
        """Takes a folder of JSON lines (id, text) for what `decontaminate` has kept: all of it."""
        self.run(
            Stage("decontaminate", 0, Texts, body="benchmarks.warm:load_survivors"), Texts(folder=str(folder))
        )

    def no_evals(self) -> str:
        """The manifest of a snapshot without eval sets."""
        return self.run(Stage("snapshot", 0, Texts, body="benchmarks.warm:nothing"), Texts(folder="")).digest


@contextmanager
def warm(memory: str = "3g", partitions: int = 4) -> Iterator[Bench]:
    """A bench on an engine of its own with a heap of `memory`, below a folder that goes with it."""
    with (
        tempfile.TemporaryDirectory(prefix="bloomery-bench-") as name,
        running_engine(Path(name), memory) as engine,
    ):
        yield Bench(Path(name), engine.execution(partitions), engine.process.pid)


def load(context: Context) -> Mapping[str, Artifact]:
    """Body: the table that `clean` would have made of texts that it keeps."""
    with session(context) as spark:
        rows = spark.read.schema("id string, text string").json(context.config.folder)
        about = (
            "'bench' AS source, 'texts' AS path, cast(null AS bigint) AS member, 0L AS offset, "
            "cast(null AS string) AS url, octet_length(text) AS bytes"
        )
        rest = "cast(octet_length(text) AS bigint) AS length, 'en' AS language, 'kept' AS status"
        rows = rows.selectExpr(
            "id", *about.split(", "), *rest.split(", "), "cast(null AS string) AS rule", "text"
        )
        rows = rows.withColumn("bytes", rows.bytes.cast("bigint"))
        profile = write_table(
            spark, context, "documents", rows, (*FILE, "status", "rule"), ("bytes", "length")
        )
    return _outputs(context, context.artifact("documents", profile.output()), profile)


def load_survivors(context: Context) -> Mapping[str, Artifact]:
    """Body: the table that `decontaminate` would have made of texts that it keeps."""
    columns = (
        *("md5(id) AS id", "'bench' AS source", "'texts' AS path", "text", "'kept' AS status"),
        *("cast(null AS bigint) AS member", "0L AS offset", "cast(octet_length(text) AS bigint) AS length"),
        "cast(null AS string) AS url",
        *("cast(null AS string) AS rule", "'train' AS split", "cast(octet_length(text) AS bigint) AS bytes"),
    )
    with session(context) as spark:
        rows = spark.read.schema("id string, text string").json(context.config.folder).selectExpr(*columns)
        profile = write_table(spark, context, "documents", rows, (*FILE, "status", "rule"), ("bytes",))
    return {"documents": context.artifact("documents", profile.output())}


def collect(context: Context) -> Mapping[str, Artifact]:
    """Body: that table as the only part of a collection."""
    parts = [Part(context.config.folder)]
    profile = profile_of_parts(context.store, parts)
    table = write_parts(context.store, context.place("documents"), parts, profile.output())
    return _outputs(context, table, profile)


def nothing(context: Context) -> Mapping[str, Artifact]:
    """Body: no eval items."""
    return {"evals": context.blob("evals", b"[]")}


def _outputs(context: Context, table: Artifact, profile: Any) -> Mapping[str, Artifact]:
    return {"documents": table, "profile": context.blob("profile", profile.to_bytes())}
