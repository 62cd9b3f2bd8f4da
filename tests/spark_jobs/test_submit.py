"""The same stages by spark-submit, each its own driver, give the same digests as on the shared engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from bloomery.airflow.catalogue import DATA_STAGES, STAGES
from bloomery.artifacts.run import run_stage
from bloomery.artifacts.store import LocalStore
from bloomery.config.gates import CorpusGateConfig
from bloomery.config.run import load
from bloomery.config.settings import settings
from bloomery.config.sources import SnapshotConfig
from spark_jobs.jars import delta_jars
from spark_jobs.java import java_home
from spark_jobs.snapshot import take
from tests.deployment import ROOT, write_config, write_corpus

ORDER = DATA_STAGES[1 : DATA_STAGES.index("shard") + 1]


def submit(home: Path, config: Path, stage: str, upstream: dict[str, str]) -> str:
    java = java_home(settings().home)
    jars = ",".join(str(jar) for jar in delta_jars(settings().home, java))
    spark_submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    command = [spark_submit, "--master", "local[2]", "--jars", jars, "--conf", "spark.driver.host=127.0.0.1"]
    command += [
        "--conf",
        "spark.ui.enabled=false",
        str(ROOT / "spark_jobs" / "submit.py"),
        stage,
        str(config),
    ]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    places = {"JAVA_HOME": str(java), "BLOOMERY_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, *(f"{name}={digest}" for name, digest in upstream.items())],
        env={**os.environ, **python, **places, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_stage_by_spark_submit_gives_the_same_manifest(tmp_path, spark_engine):
    path = write_config(tmp_path / "mine.yaml", write_corpus(tmp_path / "corpus"), "mine")
    config = load(path)

    def on_the_engine(store: LocalStore, name: str, upstream: dict[str, str]) -> str:
        stage = STAGES[name]
        policies = {"corpus_gate": config.section(CorpusGateConfig)}
        return run_stage(
            stage,
            config.section(stage.config),
            upstream,
            store,
            policies=policies,
            execution=spark_engine.execution(),
            log=lambda _: None,
        ).digest

    ours, theirs = LocalStore(tmp_path / "engine"), LocalStore(tmp_path / "home" / "store")
    expected = {"snapshot": take(config.section(SnapshotConfig), ours, None, lambda _: None).digest}
    found = {"snapshot": submit(tmp_path / "home", path, "snapshot", {})}
    for name in ORDER:
        expected[name] = on_the_engine(ours, name, expected)
        if name == "corpus_gate":  # a gate is not a data stage: Airflow runs it
            found[name] = on_the_engine(theirs, name, found)
        else:
            found[name] = submit(tmp_path / "home", path, name, found)
    assert found == expected
