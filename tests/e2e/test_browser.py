"""The product as a person uses it: a real browser, the real UI, real kills. `make test-e2e`.

A screenshot of each step lands in docs/images/.
"""

from __future__ import annotations

import psutil
import pytest

from tests.deployment import Deployment, until, write_config, write_corpus

pytestmark = pytest.mark.e2e
UNDISTURBED = """
import json
from bloomery.airflow import work
quiet = lambda *_: None
item = work.begin({config!r}, "release")
item = work.take_snapshot(item, None, quiet)
for name in work.DATA_STAGES[1:]:
    item = work.run_item(name, item, quiet)
print(json.dumps(work.run_item("train", item, quiet)))
"""


def state(deployment: Deployment, dag: str, run: str, task: str) -> tuple[str, int]:
    found = deployment.task(dag, run, task)
    return (found.state, found.tries) if found else ("", 0)


def test_from_corpus_to_release_through_kills_clears_and_an_approval(deployment, dashboard, tmp_path):
    config = write_config(tmp_path / "browser.yaml", write_corpus(tmp_path / "corpus"))
    dashboard.login()
    corpus = dashboard.trigger("corpus", config=str(config))

    # kill the Spark engine under a running stage: the try fails, the engine comes back, a clear heals the run
    until("ingest runs", lambda: state(deployment, "corpus", corpus, "ingest")[0] == "running")
    engine = deployment.processes("SparkConnectServer")[0]
    engine.kill()
    until(
        "the try failed",
        lambda: state(deployment, "corpus", corpus, "ingest") == ("up_for_retry", 1),
        timeout=60,
    )
    dashboard.page.goto(f"{deployment.url}/dags/corpus/runs/{corpus}")
    dashboard.shot("3-up-for-retry")
    dashboard.open("corpus", corpus, "ingest")
    dashboard.clear()
    until("ingest is made", lambda: state(deployment, "corpus", corpus, "ingest")[0] == "success")
    until("corpus ends", lambda: deployment.client.run_state("corpus", corpus) == "success")
    assert deployment.processes("SparkConnectServer")[0].pid != engine.pid

    # kill -9 a rank in the middle: the old tree is gone before the new one starts, which goes on where it was
    pretrain = until("pretrain is woken", lambda: deployment.newest_run("pretrain"))
    until("training saved once", lambda: "step 30" in _log(deployment, pretrain) or None)
    old = deployment.processes("training")
    ranks = [process for process in old if "training.main" in " ".join(process.cmdline())]
    assert len(ranks) >= 2
    ranks[-1].kill()
    until(
        "the try failed", lambda: state(deployment, "pretrain", pretrain, "train") == ("up_for_retry", 1), 90
    )
    dashboard.open("pretrain", pretrain, "train", map_index=0)
    dashboard.clear()
    until("it trains again", lambda: state(deployment, "pretrain", pretrain, "train")[0] == "running")
    assert not [process for process in old if _alive(process)]
    until(
        "pretrain ends", lambda: deployment.client.run_state("pretrain", pretrain) == "success", timeout=300
    )
    dashboard.page.goto(f"{deployment.url}/dags/corpus")
    dashboard.shot("5-grid")

    # evaluate and release follow; a person approves
    release = until("release is woken", lambda: deployment.newest_run("release"), timeout=300)
    waits = lambda: state(deployment, "release", release, "candidate.approve")[0] == "awaiting_input"  # noqa: E731
    until("release waits for a person", waits, timeout=300)
    assert "champion" not in deployment.bloomery("refs", "models/")
    dashboard.approve()
    until("release ends", lambda: deployment.client.run_state("release", release) == "success", timeout=300)
    dashboard.page.goto(f"{deployment.url}/dags/release/runs/{release}")
    dashboard.shot("8-released")
    assert '"approver": "admin"' in deployment.bloomery("refs", "models/browser/champion")

    # the same digests as an undisturbed run in a store of its own
    calm = Deployment(deployment.home, BLOOMERY_STORE=str(tmp_path / "calm"))
    calm.env |= {key: deployment.env[key] for key in deployment.env if key.endswith("_PORT")}
    expected = calm.python(UNDISTURBED.format(config=str(config)))
    published = deployment.ask("work.published('browser')")
    assert {k: published[k] for k in ("ingest", "clean", "dedup", "tokenizer", "shard")} == {
        k: expected[k] for k in ("ingest", "clean", "dedup", "tokenizer", "shard")
    }
    assert expected["train"] in deployment.bloomery("refs", "decisions/")


def _log(deployment: Deployment, run: str) -> str:
    found = deployment.task("pretrain", run, "train")
    return " ".join(str(line.get("event")) for line in deployment.client.log(found)) if found else ""


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
