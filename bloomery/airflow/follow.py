"""Follows a run and what it wakes, over the REST API, and says how each task does."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from bloomery.airflow.client import FINISHED, AirflowClient, TaskState
from bloomery.errors import BloomeryError

CHAIN = ("corpus", "pretrain", "evaluate", "release")
"""The DAGs in the order in which each wakes the next."""
POLL = 0.3
PROGRESS = 2.0
"""Seconds between looks at a running task's log."""
WAKING = 720.0
"""Seconds that an event may take to wake the next DAG before it is called lost."""
MAY_SKIP = frozenset(
    {"wake", "evaluate"} | {f"candidate.{task}" for task in ("decide", "sign", "approve", "promote")}
)
"""Tasks that skip themselves: a run ends where it was asked to, or its candidate is kept or rejected."""
_MARKS = {
    "success": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "upstream_failed": "[red]✗[/]",
    "skipped": "[dim]-[/]",
}


class TaskFailedError(BloomeryError):
    """A task failed; the message has its error and its log's place."""


@dataclass
class _Running:
    """What was said of a task so far."""

    state: str = ""
    line: str = ""
    looked: float = 0.0
    said: float = 0.0


class Follower:
    """Prints the progress of a chain of runs; live on a terminal, line by line elsewhere."""

    def __init__(self, client: AirflowClient, console: Console, logs: str, config: str) -> None:
        self.client, self.console, self.logs, self.config = client, console, logs, config
        self.seen: dict[tuple[str, str, int], _Running] = {}
        self.hits, self.made = 0, 0

    def follow(self, dag: str, run: str, until: str) -> None:
        """Follows `run` of `dag`, then the runs that it wakes, up to the DAG `until`.

        Raises:
            TaskFailedError: a task failed for good.
            BloomeryError: a run was stopped, or an event woke nothing.
        """
        while True:
            self.console.print(f"[bold]{dag}[/] [dim]{self.client.url}/dags/{dag}/runs/{run}[/]")
            self._one(dag, run)
            if dag == until:
                return
            dag, run = self._next(dag, run)

    def _next(self, dag: str, run: str) -> tuple[str, str]:
        wanted, since = CHAIN[CHAIN.index(dag) + 1], datetime.datetime.now(datetime.UTC).isoformat()
        deadline, ahead = time.monotonic() + WAKING, ""
        with self.console.status(f"waiting for {wanted}"):
            while time.monotonic() < deadline:
                for woken, its_run in self.client.woken(dag, run, self.config):
                    if woken == wanted:
                        return woken, its_run
                if wanted == "pretrain" and (its_run := self.client.begun(wanted, since, self.config) or ""):
                    return wanted, its_run  # its event was lost, and the clock found what it was about
                if running := self.client.running(wanted):  # one at a time: the event waits for its turn
                    if running[0] != ahead:
                        ahead = running[0]
                        self.console.print(f"  waiting behind {escape(self._ahead(wanted, ahead))}")
                    deadline = time.monotonic() + WAKING
                time.sleep(POLL)
        raise BloomeryError(
            f"{dag} ended, but its event woke no run of {wanted} within {WAKING / 60:.0f} minutes",
            f"look whether {wanted} is paused: {self.client.url}/dags/{wanted}",
        )

    def _ahead(self, dag: str, run: str) -> str:
        """What is known of a run that goes on."""
        states = [
            f"{task.task} {task.state.replace('_', ' ')}"
            for task in self.client.tasks(dag, run)
            if task.state and task.state not in FINISHED
        ]
        return f"{self.client.url}/dags/{dag}/runs/{run}{': ' * bool(states)}{', '.join(states)}"

    def _one(self, dag: str, run: str) -> None:
        ahead = ""
        with self.console.status("") as status:
            while True:
                state = self.client.run_state(dag, run)
                for task in self.client.tasks(dag, run):
                    if line := self._tell(task):
                        status.update(line)
                if state == "queued" and (others := self.client.running(dag)) and others[0] != ahead:
                    ahead = others[0]
                    self.console.print(f"  waiting behind {escape(self._ahead(dag, ahead))}")
                if state == "success":
                    self._check_whole(dag, run)
                    return
                if state == "failed":
                    raise self._failure(dag, run)
                time.sleep(POLL)

    def _check_whole(self, dag: str, run: str) -> None:
        """Airflow 3.3.2 calls a run a success that was marked failed while a task waited for its next try."""
        tasks = [task.task for task in self.client.tasks(dag, run) if task.state == "skipped"]
        if stopped := [task for task in tasks if task not in MAY_SKIP]:
            raise BloomeryError(
                f"run {run} of {dag} was stopped: {', '.join(stopped)} skipped",
                f"clear the skipped tasks to go on: {self.client.url}/dags/{dag}/runs/{run}",
            )

    def _tell(self, task: TaskState) -> str:
        known = self.seen.setdefault((task.dag, task.task, task.map_index), _Running())
        name = task.task + (f"[{task.map_index}]" if task.map_index >= 0 else "")
        now = time.monotonic()
        if task.state in FINISHED and known.state not in FINISHED:
            outcome = self._outcome(task)
            self.console.print(
                f"  {_MARKS.get(task.state, '?')} {name:<16} {task.seconds:6.1f} s  {escape(outcome)}"
            )
        elif task.state in {"up_for_retry", "awaiting_input"} and known.state != task.state:
            what = (
                f"try {task.tries} failed, it will be tried again: {self._cause(task)}"
                if task.state == "up_for_retry"
                else f"waits for a person: {self.client.url}/required_actions"
            )
            self.console.print(f"  [yellow]…[/] {name:<16} {escape(what)}")
        known.state = task.state
        if task.state != "running" or now - known.looked < PROGRESS:
            return ""
        known.looked = now
        line = next(self._lines(task), "")
        if not self.console.is_terminal and line and line != known.line and now - known.said > 5 * PROGRESS:
            self.console.print(f"    [dim]{name}: {escape(line)}[/]", highlight=False)
            known.said = now
        known.line = line
        return f"{name}: {escape(line)}"

    def _lines(self, task: TaskState) -> Iterator[str]:
        """Lines of a task's log, newest first, without Airflow's own."""
        for line in reversed(self.client.log(task)):
            if line.get("logger") == "airflow.task.bloomery" and line.get("event"):
                yield str(line["event"]).splitlines()[0]

    def _outcome(self, task: TaskState) -> str:
        if not task.tries:  # never started, as behind a failed task
            return task.state.replace("_", " ")
        for line in self._lines(task):
            if line.startswith(f"{task.task.split('.')[-1]}: done already"):
                self.hits += 1
                return "done already"
            if ": made: " in line:
                self.made += 1
                return "made"
        return self._cause(task) if task.state == "failed" else ""

    def _cause(self, task: TaskState) -> str:
        for line in reversed(self.client.log(task)):
            details = line.get("error_detail") or []
            if details:
                return f"{details[-1].get('exc_type')}: {details[-1].get('exc_value')}"
            if line.get("level") in {"error", "critical"}:
                return str(line["event"])
        return "no cause in its log"

    def _failure(self, dag: str, run: str) -> BloomeryError:
        failed = [task for task in self.client.tasks(dag, run) if task.state == "failed"]
        if not failed:
            return BloomeryError(
                f"run {run} of {dag} was marked failed", f"{self.client.url}/dags/{dag}/runs/{run}"
            )
        task = failed[0]
        folder = f"dag_id={dag}/run_id={run}/task_id={task.task}"
        if task.map_index >= 0:
            folder += f"/map_index={task.map_index}"
        reports = (line.partition(": report: ")[2] for line in self._lines(task))
        report = next((f"Report: {address}\n" for address in reports if address), "")
        return TaskFailedError(
            f"{dag}.{task.task} failed: {self._cause(task)}\n{report}"
            f"Log: {self.logs}/{folder}/attempt={task.tries}.log",
            f"mend the cause, then clear the task in the UI: {self.client.url}/dags/{dag}/runs/{run}; "
            "if the config is the cause, run the mended one",
        )
