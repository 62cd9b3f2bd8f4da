"""The command line: help has examples, an error has no traceback, refs and lineage read the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bloomery.artifacts.manifest import Artifact, Output, Spec
from bloomery.artifacts.refs import move_ref
from bloomery.artifacts.run import commit, run_stage
from bloomery.artifacts.store import LocalStore
from bloomery.cli import app
from tests.artifacts.toy import AFTER, GATE, MAKE, PolicyConfig, ToyConfig
from tests.deployment import ROOT, free_port
from tests.shards.data import dataset

COMMANDS = sorted(
    command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands
)


def bloomery(home, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BLOOMERY_")}
    env = {**clean, "BLOOMERY_HOME": str(home), "COLUMNS": "200", **environment}
    command = [sys.executable, "-P", "-m", "bloomery.cli", *arguments]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_commands_are_those_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert {
        "up",
        "stop",
        "run",
        "show",
        "refs",
        "lineage",
        "explain",
        "invalidate",
        "config",
        "doctor",
    } <= set(COMMANDS)
    assert [name for name in COMMANDS if name not in readme] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert f"Example:  bloomery {command}" in shown.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "absent.yaml"), ["absent.yaml: cannot be read", "Remedy"]),
        (("config", "pyproject.toml"), ["not YAML"]),
        (
            ("run", "configs/demo.yaml", "--until", "monday"),
            ["--until 'monday' is not a DAG", "corpus, pretrain"],
        ),
        (("show", "models/none/champion"), ["no ref or manifest"]),
        (("invalidate", "0" * 64, "--reason", "x"), ["nothing is committed under key"]),
        (("explain", "nobody"), ["0 datasets are published", "run the DAG corpus"]),
        (("explain", "nobody", "--name", "x"), ["no dataset is published under the name 'x'"]),
    ],
)
def test_an_error_names_the_thing_and_the_remedy_without_a_traceback(tmp_path, arguments, words):
    done = bloomery(tmp_path, *arguments)
    assert done.returncode == 1 and done.stdout == ""  # what a pipe reads is no error
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" in bloomery(tmp_path, "--debug", *arguments).stderr


def test_a_deployment_that_does_not_run_is_named_by_run_and_by_doctor(tmp_path):
    ports = {f"BLOOMERY_{name}": str(free_port()) for name in ("AIRFLOW_PORT", "MLFLOW_PORT", "SPARK_PORT")}
    text = bloomery(tmp_path, "doctor", **ports).stdout
    assert f"Airflow at http://127.0.0.1:{ports['BLOOMERY_AIRFLOW_PORT']}" in text
    assert "remedy: start it: bloomery up" in text
    assert "conditional put and compare-and-swap hold" in text


def test_a_busy_port_and_a_wrong_store_are_named_before_anything_starts(tmp_path):
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        done = bloomery(tmp_path, "up", BLOOMERY_AIRFLOW_PORT=port)
    assert done.returncode == 1
    assert f"port {port}, for airflow-api, is in use" in done.stderr
    assert "BLOOMERY_AIRFLOW_PORT=" in done.stderr
    ports = {f"BLOOMERY_{n}_PORT": str(free_port()) for n in ("AIRFLOW", "MLFLOW", "SPARK", "SPARK_UI")}
    done = bloomery(tmp_path, "up", BLOOMERY_STORE="ftp://x/y", **ports)
    assert done.returncode == 1
    assert "'ftp://x/y' is not a store" in done.stderr
    assert bloomery(tmp_path, "stop").stdout.strip() == "nothing runs"


@pytest.fixture
def made(tmp_path):
    store = LocalStore(tmp_path / "store")
    upstream = {"make": run_stage(MAKE, ToyConfig(), {}, store, log=lambda _: None).digest}
    upstream["gate"] = run_stage(GATE, PolicyConfig(most=1), upstream, store, log=lambda _: None).digest
    move_ref(store, "models/toy/champion", {"digest": upstream["make"]}, None)
    return upstream


def test_show_refs_lineage_invalidate_and_waive(tmp_path, made):
    shown = json.loads(bloomery(tmp_path, "show", "models/toy/champion", "--json").stdout)
    assert (shown["manifest"], shown["spec"]["stage"], shown["committed"]) == (made["make"], "make", True)
    assert "models/toy/champion" in bloomery(tmp_path, "refs", "models/").stdout
    assert f"make {made['make']}" in bloomery(tmp_path, "lineage", made["gate"][:10]).stdout
    assert "is waived" in bloomery(tmp_path, "waive", made["gate"], "--reason", "known").stdout
    policies = {"gate": PolicyConfig(most=1)}
    store = LocalStore(tmp_path / "store")
    assert run_stage(AFTER, ToyConfig(), made, store, policies=policies, log=lambda _: None).digest
    assert bloomery(tmp_path, "waive", made["make"], "--reason", "no").returncode == 1
    assert "is invalidated" in bloomery(tmp_path, "invalidate", shown["key"], "--reason", "wrong").stdout
    assert json.loads(bloomery(tmp_path, "show", made["make"], "--json").stdout)["committed"] is False


def test_export_writes_the_tokens_of_a_manifest(tmp_path):
    store = LocalStore(tmp_path / "store")
    shards = Output(digest=dataset(store.root / "data/s"), documents=260, tokens=1)
    spec = Spec(stage="shard", version=1, config={}, inputs={}, libraries={})
    digest = commit(store, spec, {"shards": Artifact(shards, "data/s", store)}, {}, "1", 0.0).digest
    arguments = ("export", digest[:12], "--to", str(tmp_path / "out"))
    done = bloomery(tmp_path, *arguments, "--format", "ds")
    assert done.returncode == 0 and "260 documents" in done.stdout
    assert len(list((tmp_path / "out/train/web").glob("*.ds.index"))) > 1
    again = bloomery(tmp_path, *arguments, "--format", "ds")
    assert again.returncode == 1 and "is not empty" in again.stderr
    assert "one of mds, ds, npy" in bloomery(tmp_path, *arguments, "--format", "csv").stderr


def test_config_tells_identity_and_execution_apart(tmp_path):
    lines = bloomery(tmp_path, "config", "configs/demo.yaml").stdout.splitlines()
    marks = {
        line.split()[0]: line.split()[2]
        for line in lines
        if line.startswith(("train.steps", "execution.spark.part"))
    }
    assert marks == {"train.steps": "yes", "execution.spark.partitions": "no"}
    assert json.loads(bloomery(tmp_path, "config", "configs/demo.yaml", "--json").stdout)["name"] == "demo"


def test_a_service_that_cannot_start_ends_the_wait_with_its_last_line(tmp_path):
    ports = {f"BLOOMERY_{n}_PORT": str(free_port()) for n in ("AIRFLOW", "MLFLOW", "SPARK", "SPARK_UI")}
    nowhere = f"postgresql+psycopg2://nobody@127.0.0.1:{free_port()}/nothing"
    try:
        done = bloomery(tmp_path, "up", BLOOMERY_AIRFLOW_DATABASE=nowhere, **ports)
        assert done.returncode == 1
        assert "airflow-database does not start:" in done.stderr
        assert "airflow-database.log" in done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    finally:
        assert bloomery(tmp_path, "stop").stdout.strip() == "stopped"


def test_a_preset_says_what_it_costs(tmp_path):
    found = bloomery(tmp_path, "model", "moe-8x7b")
    assert found.returncode == 0 and "46,702,792,704" in found.stdout and "12,879,925,248" in found.stdout
    assert "8,030,261,248" in bloomery(tmp_path, "model").stdout
    unknown = bloomery(tmp_path, "model", "9b")
    assert unknown.returncode == 1 and "one of demo, 125m, 1b, 8b" in unknown.stderr
