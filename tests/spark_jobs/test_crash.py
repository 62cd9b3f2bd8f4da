"""kill -9 at random points of each real stage, also between table and action: a rerun converges."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bloomery.artifacts.run import invalidate
from tests.spark_jobs.conftest import GATES, ORDER, Pipeline

CODE = """
import sys
from pathlib import Path
import bloomery.artifacts.run as run
from bloomery.artifacts.store import LocalStore
from bloomery.config.run import Execution, SparkConfig
from tests.spark_jobs.conftest import ORDER, Pipeline

folder, url, stage, point = Path(sys.argv[1]), *sys.argv[2:]
if point == "before-action":
    import os, signal
    run.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
execution = Execution(spark=SparkConfig(remote=url, partitions=2))
pipeline = Pipeline(LocalStore(folder / "store"), folder / "corpus", lambda partitions: execution)
pipeline.run(*(ORDER[: ORDER.index(stage) + 1] if stage in ORDER else (*ORDER, stage)))
"""


def start(finished: Pipeline, url: str, stage: str, point: str) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    arguments = [str(finished.corpus.parent), url, stage, point]
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        env=os.environ | {"PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", [*ORDER, *GATES])
def test_a_killed_stage_leaves_nothing_visible_and_a_rerun_converges(finished, spark_engine, stage):
    finished.run(stage)
    before = finished.outcomes[stage]
    key, draw = before.manifest.spec.key, random.Random(stage)
    began = time.monotonic()
    invalidate(finished.store, key, "test")
    finished.run(stage)
    usual = time.monotonic() - began
    for attempt in range(5):
        invalidate(finished.store, key, "test")
        child = start(finished, spark_engine.url, stage, "before-action" if attempt == 0 else "anywhere")
        if attempt == 0:
            assert child.wait(300) == -signal.SIGKILL
        else:
            # Imports take a second or two: past them, anywhere in the stage's usual time.
            time.sleep(1.5 + draw.random() * usual)
            child.kill()
            child.wait()
        visible = finished.store.get(f"actions/{key}")
        assert attempt or visible is None
        finished.run(stage)
        assert finished.outcomes[stage].digest == before.digest
