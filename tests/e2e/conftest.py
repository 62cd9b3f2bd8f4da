"""A deployment and a browser on its dashboard. Screenshots land in docs/images/."""

from __future__ import annotations

import shutil

import pytest

from tests.deployment import ROOT, Deployment, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IMAGES = ROOT / "docs" / "images"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FLAGS += ["--disable-component-update", "--disable-sync"]


class Dashboard:
    """The UI, as a person clicks through it."""

    def __init__(self, page, deployment: Deployment) -> None:
        self.page, self.deployment = page, deployment

    def shot(self, name: str, element=None) -> None:
        """A screenshot of the page or of an element: for the README, so it names no path of a machine."""
        self.page.wait_for_timeout(1500)
        (element or self.page).screenshot(path=IMAGES / f"{name}.png")

    def pause(self, dag: str) -> None:
        """Turns a DAG off by its switch, if it is on."""
        self.page.goto(f"{self.deployment.url}/dags/{dag}")
        switch = self.page.locator(
            "label:has(input[type=checkbox][role=switch]), label[data-scope=switch]"
        ).first
        switch.wait_for()
        if switch.get_attribute("data-state") == "checked":
            switch.click()
        self.page.wait_for_timeout(500)

    def login(self) -> None:
        self.page.goto(self.deployment.url)
        self.page.fill("input[name=username]", self.deployment.login["user"])
        self.page.fill("input[name=password]", self.deployment.login["password"])
        self.shot("1-login")
        self.page.click("button[type=submit]")
        self.page.wait_for_url(self.deployment.url + "/")

    def trigger(self, dag: str, **fields: str) -> str:
        """Fills the form and triggers; the run's id."""
        before = self.deployment.newest_run(dag)
        self.page.goto(f"{self.deployment.url}/dags/{dag}")
        self.page.get_by_label("Trigger Dag").first.click()
        self.page.locator("input[name=element_config]").wait_for()
        self.shot("2-trigger")
        for name, value in fields.items():
            self.page.fill(f"input[name=element_{name}]", value)
        self.page.get_by_role("dialog").get_by_role("button", name="Trigger", exact=True).click()
        return until(f"a run of {dag}", lambda: (r := self.deployment.newest_run(dag)) != before and r)

    def open(self, dag: str, run: str, task: str, map_index: int = -1) -> None:
        mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
        self.page.goto(f"{self.deployment.url}/dags/{dag}/runs/{run}/tasks/{task}{mapped}")
        self.page.get_by_text(task).first.wait_for()

    def clear(self) -> None:
        """Clears the task instance that is open, with what comes after it."""
        self.page.get_by_label("Press shift+c to clear").first.click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Confirm").wait_for()
        self.page.wait_for_timeout(1000)
        self.shot("4-clear", dialog)
        dialog.get_by_role("button", name="Confirm").click()
        dialog.wait_for(state="hidden")

    def approve(self) -> None:
        self.page.goto(f"{self.deployment.url}/required_actions")
        self.shot("6-required-actions")
        self.page.get_by_role("link", name="Release browser").first.click()
        self.page.get_by_role("button", name="Approve").wait_for()
        self.shot("7-approve")
        self.page.get_by_role("button", name="Approve").click()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian's package: chromium)")
    with Deployment(tmp_path_factory.mktemp("browser") / "home") as running:
        yield running


@pytest.fixture
def dashboard(deployment):
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        page.set_default_timeout(30_000)
        yield Dashboard(page, deployment)
        browser.close()
