"""What a real MLflow server shows of a run, its evals and its release."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import httpx
import pytest

from bloomery.artifacts.run import run_stage
from bloomery.artifacts.store import LocalStore
from bloomery.config.release import EvaluateConfig, ReleaseConfig
from bloomery.config.settings import settings
from tests.validation.models import make_candidate
from training.metrics import MetricLog, cut
from training.mirror import Mirror, connect, open_client
from validation.release.promote import promote, sign_candidate
from validation.stages import EVALUATE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-P", "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, process_group=0
        )
    try:
        for _ in range(900):
            assert process.poll() is None, (folder / "log").read_text()
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        # The first request makes the server import the rest of itself.
        httpx.get(f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get?experiment_id=0", timeout=120)
        yield port
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)


@pytest.fixture(autouse=True)
def here(server, home, monkeypatch):
    monkeypatch.setenv("BLOOMERY_MLFLOW_PORT", str(server))
    settings.cache_clear()


def test_metrics_are_mirrored_once_also_over_a_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for first, last, resumed in ((1, 30, 0), (21, 40, 20)):  # the first attempt is lost after step 20
        cut(path, resumed)
        with Mirror(path, "run-1", "mirrored", print):
            log = MetricLog(path)
            for step in range(first, last + 1):
                log.write(step, {"loss": 10.0 - step, "grad_norm": 1.0})
    client, run = connect("mirrored", "run-1")
    history = {point.step: point.value for point in client.get_metric_history(run, "loss")}
    assert history == {step: 10.0 - step for step in range(1, 41)}
    assert client.get_run(run).data.tags["bloomery.run"] == "run-1"


def test_an_eval_stands_on_the_checkpoints_logged_model(trained):
    checkpoint = trained.ranks.journal.head()
    upstream = {**trained.world.sources(), "checkpoint": checkpoint.digest}
    config, about = EvaluateConfig(max_tokens=512), {"config": trained.config, "name": "tiny"}
    outcome = run_stage(EVALUATE, config, upstream, trained.world.store, about=about)
    client, run = connect("tiny", trained.ranks.run)
    experiment = client.get_run(run).info.experiment_id
    [model] = client.search_logged_models([experiment])
    assert model.tags["bloomery.checkpoint"] == checkpoint.digest
    assert model.status.value == "READY"
    assert model.source_run_id == run
    metrics = {metric.key: metric.value for metric in model.metrics}
    assert metrics["eval_bits_per_byte"] == outcome.manifest.outputs["eval"].facts["bits_per_byte"]


def test_a_release_is_the_alias_champion(tmp_path):
    store = LocalStore(tmp_path / "store")
    for name, bits in (("one", 2.0), ("two", 1.0)):
        candidate = make_candidate(store, name, bits)
        signature = sign_candidate(store, candidate)
        verdict = promote(store, "released", candidate, signature, ReleaseConfig(), "ada")
    version = open_client().get_model_version_by_alias("released", "champion")
    assert version.tags["bloomery.version"] == "2"
    assert version.tags["bloomery.model"] == verdict.release.model
    assert version.source == f"bloomery://store/manifests/{candidate.export}"
