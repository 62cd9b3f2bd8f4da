"""Airflow's REST API, as the command line uses it: trigger, follow, read logs. Never a second
orchestrator."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from bloomery.errors import BloomeryError, TransientError

NOTE = 1000
"""Characters of a note that Airflow keeps."""
FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


@dataclass(frozen=True)
class TaskState:
    """A task instance as the API tells it."""

    dag: str
    run: str
    task: str
    map_index: int
    state: str
    tries: int
    seconds: float

    @property
    def path(self) -> str:
        """The API's path of it."""
        return f"dags/{self.dag}/dagRuns/{self.run}/taskInstances/{self.task}"


class AirflowClient:
    """A logged-in client.

    Raises:
        TransientError: Airflow does not answer.
        BloomeryError: it refuses; its own words are in the message.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url, self._login = url, {"username": user, "password": password}
        self._http = httpx.Client(base_url=url, timeout=60)

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """One call of the API; logs in when needed, and waits out an API that restarts for 30 s."""
        deadline = time.monotonic() + 30
        while True:
            try:
                if "Authorization" not in self._http.headers:
                    answer = self._http.post("/auth/token", json=self._login)
                    _check(answer, "log in")
                    self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
                answer = self._http.request(method, f"/api/v2/{path}", **arguments)
                if answer.status_code == 401:
                    del self._http.headers["Authorization"]
                if answer.status_code == 401 or answer.status_code >= 500:
                    # Airflow 3.3.2 answers 500 for the events of a run that it woke and has not started yet
                    answer.raise_for_status()
                _check(answer, f"{method} {path}")
                return answer.json() if answer.content else None
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"Airflow at {self.url} does not answer: {error}", "start it with `bloomery up`"
                    ) from error
                time.sleep(1)

    def await_dags(self, names: Iterable[str], timeout: float = 120) -> None:
        """Waits until Airflow has read these DAGs: a deployment that has just started takes its time.

        Raises:
            BloomeryError: one is not there; the errors of the DAG files are in the message.
        """
        deadline = time.monotonic() + timeout
        while missing := set(names) - {dag["dag_id"] for dag in self.call("GET", "dags")["dags"]}:
            if time.monotonic() > deadline:
                errors = self.call("GET", "importErrors")["import_errors"]
                found = "; ".join(f"{e['filename']}: {e['stack_trace'].splitlines()[-1]}" for e in errors)
                names = ", ".join(sorted(missing))
                raise BloomeryError(
                    f"Airflow has not read the DAGs {names}: {found or 'no import error'}",
                    "look at the log airflow-dag-processor.log",
                )
            time.sleep(0.5)

    def trigger(self, dag: str, conf: dict[str, Any]) -> str:
        """Triggers a run by hand and returns its id."""
        self.call("PATCH", f"dags/{dag}", json={"is_paused": False})
        run = f"bloomery-{uuid.uuid4().hex[:12]}"
        body = {"dag_run_id": run, "logical_date": None, "conf": conf}
        self.call("POST", f"dags/{dag}/dagRuns", json=body)
        return run

    def run_state(self, dag: str, run: str) -> str:
        """State of a run."""
        return str(self.call("GET", f"dags/{dag}/dagRuns/{run}")["state"])

    def note(self, dag: str, run: str, line: str) -> None:
        """Adds a line to the note of a run, which the UI shows beside it, unless it stands there."""
        path = f"dags/{dag}/dagRuns/{run}"
        known = self.call("GET", path)["note"] or ""
        if line not in known.split("\n"):
            self.call("PATCH", path, json={"note": f"{known}\n{line}".strip()[:NOTE]})

    def running(self, dag: str) -> list[str]:
        """The DAG's runs that go on."""
        found = self.call("GET", f"dags/{dag}/dagRuns", params={"state": "running"})["dag_runs"]
        return [str(run["dag_run_id"]) for run in found]

    def tasks(self, dag: str, run: str) -> list[TaskState]:
        """Every task instance of a run."""
        found = self.call("GET", f"dags/{dag}/dagRuns/{run}/taskInstances", params={"limit": 500})
        return [
            TaskState(
                dag,
                run,
                item["task_id"],
                item["map_index"],
                item["state"] or "none",
                item["try_number"],
                item["duration"] or 0.0,
            )
            for item in found["task_instances"]
        ]

    def xcom(self, task: TaskState) -> Any:
        """What a task returned, or None."""
        try:
            found = self.call(
                "GET",
                f"{task.path}/xcomEntries/return_value",
                params={"map_index": task.map_index, "deserialize": False, "stringify": False},
            )
        except BloomeryError:
            return None
        return found["value"]

    def log(self, task: TaskState) -> list[dict[str, Any]]:
        """The log of a task's newest try, as structured lines."""
        found = self.call(
            "GET",
            f"{task.path}/logs/{max(task.tries, 1)}",
            params={"full_content": True, "map_index": task.map_index},
            headers={"Accept": "application/json"},
        )
        return [line if isinstance(line, dict) else {"event": str(line)} for line in found["content"]]

    def woken(self, dag: str, run: str, config: str) -> Iterator[tuple[str, str]]:
        """The (dag, run) that this run's events about the run with this config's digest woke so far."""
        found = self.call("GET", "assets/events", params={"source_dag_id": dag, "source_run_id": run})
        for event in found["asset_events"]:
            if event["extra"].get("item", {}).get("config") == config:
                for created in event["created_dagruns"]:
                    yield created["dag_id"], created["run_id"]

    def begun(self, dag: str, since: str, config: str) -> str | None:
        """The newest run of the DAG that began after `since` (ISO 8601) with an item of this config."""
        runs = self.call("GET", f"dags/{dag}/dagRuns", params={"order_by": "-run_after", "limit": 10})[
            "dag_runs"
        ]
        for run in runs:
            if (run["start_date"] or "") > since:
                begin = TaskState(dag, run["dag_run_id"], "begin", -1, "success", 1, 0.0)
                if any(item.get("config") == config for item in self.xcom(begin) or []):
                    return str(run["dag_run_id"])
        return None

    def ensure_pool(self, name: str, slots: int, description: str) -> None:
        """Makes a pool unless it exists: its slots are the operator's to change afterwards."""
        try:
            self.call("GET", f"pools/{name}")
        except BloomeryError:
            body = {"name": name, "slots": slots, "description": description, "include_deferred": False}
            self.call("POST", "pools", json=body)


def _check(answer: httpx.Response, what: str) -> None:
    if answer.is_error:
        try:
            detail = answer.json().get("detail", answer.text)
        except ValueError:
            detail = answer.text[:500]
        raise BloomeryError(f"Airflow refused to {what}: {answer.status_code}: {detail}")
