"""kill -9 of evaluation and export at random points, also between output and action: a rerun converges."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from bloomery.artifacts.run import invalidate, run_stage
from bloomery.config.release import EvaluateConfig, ExportConfig
from tests.deployment import ROOT
from validation.stages import EVALUATE, EXPORT

CODE = """
import json, os, signal, sys
import bloomery.artifacts.run as run
from bloomery.artifacts.store import LocalStore
from bloomery.config.release import EvaluateConfig, ExportConfig
from validation import stages
root, name, upstream, point = sys.argv[1:]
if point == "before-action":
    run.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
stage = getattr(stages, name.upper())
run.run_stage(stage, stage.config(), json.loads(upstream), LocalStore(root))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "config"), [(EVALUATE, EvaluateConfig()), (EXPORT, ExportConfig())])
def test_a_killed_stage_leaves_nothing_visible_and_a_rerun_converges(trained, stage, config):
    store = trained.world.store
    upstream = dict(trained.upstream)
    if stage is EVALUATE:
        upstream["checkpoint"] = trained.ranks.journal.live()[-1].digest
    began = time.monotonic()
    before = run_stage(stage, config, upstream, store)
    usual, key, draw = time.monotonic() - began, before.manifest.spec.key, random.Random(stage.name)
    for attempt in range(5):
        invalidate(store, key, "test")
        point = "before-action" if attempt == 0 else "anywhere"
        arguments = [str(store.root), stage.name, json.dumps(upstream), point]
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", CODE, *arguments], cwd=ROOT, env=dict(os.environ)
        )
        if attempt == 0:
            assert child.wait(120) == -signal.SIGKILL
            assert store.get(f"actions/{key}") is None
        else:
            time.sleep(draw.uniform(1, 8 + usual))
            child.kill()
            child.wait()
        assert run_stage(stage, config, upstream, store).digest == before.digest
