"""A task runs a stage: that is all that Airflow knows.

What travels between tasks is an *item*: {"config": digest, "name": run, "<stage>": manifest digest, ...}. A
task takes the item of the task before it, runs its stage, and hands on the item with its manifest's digest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, CronTriggerTimetable
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

Item = dict[str, str]
LOG = logging.getLogger("airflow.task.bloomery")
"""What a task says in its log, and `bloomery run` shows as progress."""

DEFAULTS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(hours=12),
}
"""Of every DAG: a passing fault heals by itself, a lasting one ends the task at once
(AirflowFailException)."""


def at(cron: str) -> CronTriggerTimetable:
    """A schedule by cron, in UTC, that waits for its next tick: a new deployment starts nothing unasked.

    A zero timedelta says so; False, the documented way, runs the last tick when that is near (Airflow 3.3.2).
    """
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta())


class StoppedError(Exception):
    """The task was marked failed, cleared or stopped while it ran."""


class StageOperator(BaseOperator):
    """Runs the stage that the task is named after; a finished one costs a look-up.

    Args:
        item: the item, or the items, of the tasks before this one.
    """

    template_fields = ("item",)
    ui_color = "#dbe9f4"

    def __init__(self, *, item: Any, stage: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.item = item
        self.stage = stage or self.task_id

    def execute(self, context: Any) -> Item:  # noqa: ARG002
        """Runs the stage and returns the item with its manifest's digest."""
        from bloomery.airflow.work import run_item

        item = merged(self.item)
        with explained():
            return run_item(self.stage, item, LOG.info)

    def on_kill(self) -> None:
        """Interrupts the body, which ends whatever it started: the signal handler that calls this only
        returns."""
        raise StoppedError(f"{self.task_id} was stopped")


def merged(items: Mapping[str, str] | Sequence[Mapping[str, str]]) -> Item:
    """One item of several, which must tell of the same run."""
    several = [items] if isinstance(items, Mapping) else list(items)
    if len({item["config"] for item in several}) != 1:
        raise AirflowFailException(
            f"tasks of different configs meet: {sorted({i['config'] for i in several})}"
        )
    return {key: value for item in several for key, value in item.items()}


class explained:  # noqa: N801  reads as a phrase
    """Ends a failure with its cause in one line, and spares a lasting one its retries.

    An error of ours says all that there is to say, so its traceback is left out; any other keeps its own.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        from bloomery.errors import BloomeryError

        if error is None or isinstance(error, StoppedError | AirflowSkipException):
            return
        LOG.error("%s: %s", type(error).__name__, str(error).partition("\n")[0])
        if isinstance(error, BloomeryError):
            raise (AirflowException if error.retry else AirflowFailException)(str(error)) from None
