"""Reports in Airflow's web server: for whoever is logged in, read-only, and nothing but reports."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from bloomery.airflow.reports import ReportLink, ReportOperator
from bloomery.airflow.work import PAGES
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import LocalStore
from bloomery.cluster.credentials import credentials
from bloomery.cluster.services import airflow_environment
from bloomery.config.settings import Settings, settings
from tests.conftest import free_port
from tests.training.world import put


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Settings]:
    """Airflow's API server alone, with our plugin."""
    deployment = Settings(home=tmp_path_factory.mktemp("home"), airflow_port=free_port())
    env = airflow_environment(deployment)
    airflow = [sys.executable, "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], env=env, check=True, capture_output=True)
    with open(deployment.home / "log", "wb") as log:
        process = subprocess.Popen([*airflow, "api-server"], env=env, stdout=log, stderr=log)
    try:
        for _ in range(1200):
            assert process.poll() is None, (deployment.home / "log").read_text()[-3000:]
            try:
                httpx.get(f"{deployment.airflow_url}/api/v2/monitor/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield deployment
    finally:
        process.terminate()
        process.wait(30)


def token(server: Settings) -> str:
    login = credentials(server.home)
    body = {"username": login["user"], "password": login["password"]}
    return httpx.post(f"{server.airflow_url}/auth/token", json=body).json()["access_token"]


def keep(server: Settings, output: str, text: str) -> str:
    store = LocalStore(server.home / "store")
    store.put_new(f"data/{output}/1", text.encode())
    return put(
        store, output, {}, {output: Artifact(Output(digest=output.ljust(64, "0")), f"data/{output}/1", store)}
    )


def test_reports_are_for_whoever_is_logged_in_and_nothing_else_is_served(server):
    report, secret = keep(server, "report", "<!doctype html>the report"), keep(server, "weights", "secret")
    url = f"{server.airflow_url}{PAGES}/reports"
    assert httpx.get(f"{url}/{report}").status_code == 401
    assert httpx.get(f"{url}/{report}", cookies={"_token": "forged"}).status_code in {401, 403}
    with httpx.Client(cookies={"_token": token(server)}) as browser:
        found = browser.get(f"{url}/{report}")
        assert (found.status_code, found.text) == (200, "<!doctype html>the report")
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert browser.get(f"{url}/{secret}").status_code == 404
        assert browser.get(f"{url}/{'0' * 64}").status_code == 404
        assert browser.get(f"{url}/..%2f..%2fdata%2fweights%2f1").status_code in {404, 422}
        assert browser.post(f"{url}/{report}").status_code == 405
        for page in ("openapi.json", "docs"):
            assert browser.get(f"{server.airflow_url}{PAGES}/{page}").status_code == 404


def test_the_link_opens_what_the_task_made_and_is_empty_before():
    operator = ReportOperator(task_id="report", item={})
    (link,) = operator.operator_extra_links
    assert isinstance(link, ReportLink)
    assert link.get_link(operator, ti_key=None) == ""
    operator.made = "a" * 64
    assert link.get_link(operator, ti_key=None) == f"{settings().airflow_url}/bloomery/reports/{'a' * 64}"
