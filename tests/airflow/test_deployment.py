"""Whole deployments: two configs side by side, stops, backfills, moved policies; S3 and PostgreSQL.
PostgreSQL.

`make test-slow`. The UI's buttons are these calls of the REST API; tests/e2e clicks them.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import time

import httpx
import psutil
import pytest

from bloomery.airflow.catalogue import DATA_STAGES
from tests.deployment import ROOT, Deployment, until, write_config, write_corpus
from tests.servers import KEYS, make_bucket, make_database, postgresql, seaweedfs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("deployment") / "home") as running:
        yield running


def ended(deployment: Deployment, dag: str, run: str, timeout: float = 400) -> str:
    states = {"success", "failed"}
    return until(
        f"{run} of {dag} ends",
        lambda: (state := deployment.client.run_state(dag, run)) in states and state,
        timeout=timeout,
    )


def connections(process: psutil.Process) -> list:
    try:
        return process.net_connections("inet")
    except psutil.NoSuchProcess:
        return []


def newest(deployment: Deployment, dag: str, after: set[str], timeout: float = 300) -> str:
    return until(
        f"a run of {dag}",
        lambda: (run := deployment.newest_run(dag)) not in {*after, None} and run,
        timeout=timeout,
    )


LONG = {"train__steps": 20_000, "corpus__mixture__max_epochs": 1000.0}
"""A run that a test has to stop."""
HEADS = "[ref.value for ref in list_refs(work.store(), 'runs/')]"


def test_two_configs_side_by_side_never_mix(deployment, tmp_path):
    runs, digests = [], []
    for name, seed in (("one", 1), ("two", 2)):
        corpus = write_corpus(tmp_path / name, seed=seed)
        config = write_config(tmp_path / f"{name}.yaml", corpus, name, train__steps=30, train__seed=seed)
        digests.append(deployment.ask(f"work.resolve_config({str(config)!r})"))
        runs.append(deployment.client.trigger("corpus", {"config": digests[-1], "until": "evaluate"}))
    for run in runs:
        assert ended(deployment, "corpus", run) == "success"
    published = [deployment.ask(f"work.published({name!r})") for name in ("one", "two")]
    assert [item["config"] for item in published] == digests
    assert published[0]["shard"] != published[1]["shard"]

    def trained() -> list[dict[str, str]]:
        heads = [head for head in deployment.ask(HEADS) if head["step"] == 30]
        return heads if len(heads) == 2 else []

    for head in until("both are trained", trained, timeout=400):
        item = published[["one", "two"].index(head["name"])]
        assert (head["config"], head["shard"]) == (item["config"], item["shard"])
    until("all is evaluated", lambda: deployment.ask("len(work.unevaluated())") == 0, timeout=400)
    assert "champion" not in deployment.bloomery("refs", "models/")  # both end with evaluate, as asked


def test_a_run_that_waits_for_a_person_holds_no_other_up_and_asks_once(deployment, tmp_path):
    """A newcomer found the command line following the other's release, and a person asked twice."""
    waiting = write_config(
        tmp_path / "waiting.yaml", write_corpus(tmp_path / "a", seed=10), "waiting", train__steps=30
    )
    other = write_config(
        tmp_path / "other.yaml", write_corpus(tmp_path / "b", seed=11), "other", train__steps=30
    )
    deployment.bloomery("run", str(other), "--until", "evaluate")
    deployment.client.trigger("corpus", {"config": str(waiting), "until": "release"})

    def asked() -> list[str]:
        runs = deployment.client.call("GET", "dags/release/dagRuns", params={"limit": 50})["dag_runs"]
        tasks = [task for run in runs for task in deployment.client.tasks("release", run["dag_run_id"])]
        return [
            task.run for task in tasks if task.task.endswith("approve") and task.state == "awaiting_input"
        ]

    assert "every stage was done already" in deployment.bloomery("run", str(other), "--until", "evaluate")
    until("a person is asked", asked, timeout=400)
    assert "every stage was done already" in deployment.bloomery("run", str(other), "--until", "evaluate")
    assert len(asked()) == 1


def test_checkpoints_are_evaluated_while_their_run_goes_on(deployment, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", seed=9)
    config = write_config(tmp_path / "long.yaml", corpus, "long", **LONG)
    before = {deployment.newest_run("pretrain")}
    run = deployment.client.trigger("corpus", {"config": str(config), "until": "pretrain"})
    assert ended(deployment, "corpus", run) == "success"
    pretrain = newest(deployment, "pretrain", before)
    live = lambda: [head for head in deployment.ask(HEADS) if head["name"] == "long" and head["live"]]  # noqa: E731
    until("a checkpoint is live", live)
    evaluate = deployment.client.trigger("evaluate", {})
    assert ended(deployment, "evaluate", evaluate) == "success"
    measured = [task for task in deployment.client.tasks("evaluate", evaluate) if task.task == "evaluate"]
    assert measured
    assert {task.state for task in measured} == {"success"}
    assert deployment.client.run_state("pretrain", pretrain) == "running"
    deployment.client.call("PATCH", f"dags/pretrain/dagRuns/{pretrain}", json={"state": "failed"})
    until("training has ended", lambda: not deployment.processes("training.main"), timeout=30)


def test_marking_failed_ends_the_tree_within_30_seconds_and_training_saves_first(deployment, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", seed=3)
    config = write_config(
        tmp_path / "stopped.yaml",
        corpus,
        "stopped",
        **LONG,
        execution__parallelism__checkpoint_every=20_000,
    )
    before = {deployment.newest_run("pretrain")}
    run = deployment.client.trigger("corpus", {"config": str(config), "until": "pretrain"})
    assert ended(deployment, "corpus", run) == "success"
    pretrain = newest(deployment, "pretrain", before)

    def steps() -> bool:
        task = deployment.task("pretrain", pretrain, "train")
        return bool(task) and any(
            str(line.get("event")).startswith("step ") for line in deployment.client.log(task)
        )

    until("it trains", steps)
    everything = [deployment.supervisor(), *deployment.supervisor().children(recursive=True)]
    listening = {
        (c.laddr.ip, c.laddr.port) for p in everything for c in connections(p) if c.status == "LISTEN"
    }
    beyond = {(ip, port) for ip, port in listening if ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1")}
    assert listening
    assert not beyond, "services listen beyond the loopback"
    tree = deployment.processes("training")
    assert len(tree) >= 3
    deployment.client.call(
        "PATCH",
        f"dags/pretrain/dagRuns/{pretrain}/taskInstances/train/0",
        json={"new_state": "failed"},
    )
    began = time.monotonic()
    _, left = psutil.wait_procs(tree, timeout=30)
    assert not left, f"alive {time.monotonic() - began:.0f} s after the task was marked failed: {left}"
    assert [head["step"] > 0 for head in deployment.ask(HEADS) if head["name"] == "stopped"] == [True]


def test_a_run_that_is_stopped_between_two_tries_is_not_called_done(deployment, tmp_path):
    """Airflow calls it a success: nothing failed, all that was left is skipped."""
    corpus = write_corpus(tmp_path / "corpus", seed=12)
    config = write_config(tmp_path / "between.yaml", corpus, "between", **LONG)
    before = {deployment.newest_run("pretrain")}
    command = [sys.executable, "-P", "-m", "bloomery.cli", "run", str(config), "--until", "pretrain"]
    with subprocess.Popen(
        command, env=deployment.env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as following:
        pretrain = newest(deployment, "pretrain", before, timeout=400)
        train = lambda: deployment.task("pretrain", pretrain, "train")  # noqa: E731
        until("it trains", lambda: deployment.processes("training.main"), timeout=100)
        for process in deployment.processes("training"):
            process.kill()
        until("it waits for its next try", lambda: (t := train()) and t.state == "up_for_retry", timeout=60)
        deployment.client.call("PATCH", f"dags/pretrain/dagRuns/{pretrain}", json={"state": "failed"})
        told, wrong = following.communicate(timeout=120)
    assert following.returncode == 1, told
    assert "stages made" not in told and "done already, " not in told
    assert "was stopped" in wrong or "was marked failed" in wrong


def test_stopping_a_run_ends_the_query_on_the_engine(deployment, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", documents=4000, seed=4)
    config = write_config(tmp_path / "queried.yaml", corpus, "queried")
    run = deployment.client.trigger("corpus", {"config": str(config), "until": "corpus"})
    until("measure runs", lambda: (t := deployment.task("corpus", run, "measure")) and t.state == "running")
    deployment.client.call("PATCH", f"dags/corpus/dagRuns/{run}", json={"state": "failed"})
    workers = lambda: [t for t in deployment.client.tasks("corpus", run) if t.state == "running"]  # noqa: E731
    until("nothing of it runs", lambda: not workers(), timeout=30)
    deployment.client.call(
        "POST",
        "dags/corpus/clearTaskInstances",
        json={
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": ["measure"],
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        },
    )
    assert ended(deployment, "corpus", run) == "success"


def test_a_backfill_of_a_past_date_replays_its_snapshot_or_says_that_there_is_none(deployment, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", seed=5)
    config = write_config(tmp_path / "dated.yaml", corpus, "dated")
    today = datetime.datetime.now(datetime.UTC).date()
    past = (today - datetime.timedelta(days=3)).isoformat()

    def run_of(date: str) -> str:
        run = f"backfill-{date}-{time.monotonic_ns()}"
        body = {
            "dag_run_id": run,
            "logical_date": f"{date}T00:00:00.{time.monotonic_ns() % 1000000:06d}Z",
            "conf": {"config": str(config), "until": "corpus"},
        }
        deployment.client.call("POST", "dags/corpus/dagRuns", json=body)
        ended(deployment, "corpus", run)
        return run

    failed = run_of(past)
    task = deployment.task("corpus", failed, "snapshot")
    assert (task.state, task.tries) == ("failed", 1)
    assert any("no" in str(line) and past in str(line) for line in deployment.client.log(task))
    assert deployment.client.run_state("corpus", run_of(today.isoformat())) == "success"


def test_a_moved_baseline_or_threshold_runs_only_the_gate_again_and_may_block(deployment, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", seed=6)
    config = write_config(tmp_path / "judged.yaml", corpus, "judged")
    out = deployment.bloomery("run", str(config), "--until", "corpus")
    assert f"{len(DATA_STAGES)} stages made" in out, out
    other = write_config(tmp_path / "other.yaml", write_corpus(tmp_path / "other", seed=8), "judged")
    out = deployment.bloomery("run", str(other), "--until", "corpus")
    assert f"{len(DATA_STAGES)} stages made" in out, out
    out = deployment.bloomery("run", str(config), "--until", "corpus")  # the baseline is the other's now
    assert "2 stages made" in out, out  # and the report shows the drift
    assert "every stage was done already" in deployment.bloomery("run", str(config), "--until", "corpus")
    write_config(tmp_path / "judged.yaml", corpus, "judged", corpus__gate={"min_documents": 50})
    out = deployment.bloomery("run", str(config), "--until", "corpus")
    assert "1 stages made" in out, out
    write_config(tmp_path / "judged.yaml", corpus, "judged", corpus__gate={"min_documents": 100_000})
    out = deployment.bloomery("run", str(config), "--until", "corpus", check=False)
    assert "corpus.corpus_gate failed" in out
    assert "documents is" in out
    assert f"\nReport: {deployment.url}/bloomery/reports/" in out  # that a person judges it by
    assert "Traceback" not in out


def test_a_warning_is_noted_on_the_run_and_reports_open_from_their_tasks(deployment, tmp_path):
    gate = {"dropped": {"warn": 0.0}}
    corpus = write_corpus(tmp_path / "corpus", seed=12)
    config = write_config(tmp_path / "warned.yaml", corpus, "warned", corpus__gate=gate)
    deployment.bloomery("run", str(config), "--until", "corpus")
    run, client = deployment.newest_run("corpus"), deployment.client
    note = client.call("GET", f"dags/corpus/dagRuns/{run}")["note"]
    assert note.startswith("corpus_gate: 1 warning(s): dropped is 0."), note
    login = {"username": deployment.login["user"], "password": deployment.login["password"]}
    token = httpx.post(f"{deployment.url}/auth/token", json=login).json()["access_token"]
    for task, title in (
        ("corpus_gate", "corpus_gate"),
        ("shard_gate", "shard_gate"),
        ("report", "Dataset report"),
    ):
        links = client.call("GET", f"dags/corpus/dagRuns/{run}/taskInstances/{task}/links")["extra_links"]
        page = httpx.get(links["Report"], cookies={"_token": token})
        assert page.status_code == 200, links
        assert f"<title>{title}</title>" in page.text


def test_the_same_pipeline_on_s3_and_postgresql_by_settings_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    config = write_config(
        folder / "demo.yaml",
        write_corpus(folder / "corpus"),
        "demo",
        train__steps=40,
        release={"auto_approve": True},
    )
    patch = pytest.MonkeyPatch()
    for name, value in KEYS.items():
        patch.setenv(name, value)
    try:
        with seaweedfs(folder / "weed") as endpoint, postgresql(folder / "postgres") as server:
            make_bucket(endpoint, "bloomery")
            profile = {
                "BLOOMERY_STORE": "s3://bloomery/store",
                "BLOOMERY_S3_ENDPOINT": endpoint,
                "BLOOMERY_AIRFLOW_DATABASE": make_database(server, "airflow"),
                "BLOOMERY_MLFLOW_DATABASE": make_database(server, "mlflow"),
            }
            with Deployment(folder / "home", **profile) as deployment:
                out = deployment.bloomery("run", str(config))
                assert "demo version 1" in out
                assert not (deployment.home / "store").exists()
                again = deployment.bloomery("run", str(config))
                assert "every stage was done already" in again
                assert KEYS["AWS_SECRET_ACCESS_KEY"] not in out + again
    finally:
        patch.undo()
