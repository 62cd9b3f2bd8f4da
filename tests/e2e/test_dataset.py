"""A real corpus from the form to its report, which opens from the task. `make test-e2e`."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.deployment import ROOT, until

pytestmark = pytest.mark.e2e
DOCS = ROOT.parent / "shared" / "data" / "docs-corpus"
EVALS = ROOT.parent / "shared" / "data" / "blimp-100"


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not DOCS.is_dir(), reason="the corpus shared/data/docs-corpus is not beside the checkout")
def test_a_corpus_ends_in_a_report_that_its_task_opens(deployment, dashboard, tmp_path):
    config = {
        "name": "docs",
        "corpus": {
            "snapshot": {
                "sources": [{"name": "docs", "uri": str(DOCS / "*.jsonl.gz")}],
                "eval_sets": [
                    {
                        "name": "blimp",
                        "uri": str(EVALS / "*.jsonl"),
                        "question": ["sentence_good"],
                        "answer": None,
                    }
                ],
            }
        },
    }
    path = tmp_path / "docs.yaml"
    path.write_text(yaml.safe_dump(config))
    dashboard.login()
    dashboard.pause("pretrain")
    run = dashboard.trigger("corpus", config=str(path))
    ended = lambda: deployment.client.run_state("corpus", run) in {"success", "failed"}  # noqa: E731
    until("corpus ends", ended, timeout=1800, pause=2)
    assert deployment.client.run_state("corpus", run) == "success"
    dashboard.open("corpus", run, "report")
    dashboard.page.get_by_role("tab", name="Details").or_(
        dashboard.page.get_by_role("link", name="Details")
    ).first.click()
    link = dashboard.page.get_by_role("link", name="Report", exact=True)
    link = link.or_(dashboard.page.get_by_role("button", name="Report", exact=True))
    link.first.wait_for()
    dashboard.shot("9-report-task")
    link.first.click()
    report = dashboard.page
    report.wait_for_url("**/bloomery/reports/*")
    report.set_viewport_size({"width": 1360, "height": 1500})
    dashboard.shot("10-report")
    words = report.inner_text("body")
    published = deployment.ask("work.published('docs')")
    account = deployment.bloomery("show", published["ledger"], "--json")
    statuses = json.loads(account)["outputs"]["ledger"]["facts"]["status"]
    assert sum(statuses.values()) == 5694
    assert "5,694" in words and f"{statuses['kept']:,}" in words
    assert "gopher.words" in words and "docs" in words
