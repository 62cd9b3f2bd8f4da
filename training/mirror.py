"""Mirrors a run's metric log to MLflow, in batches from a thread. MLflow's outage never stops a run."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from bloomery.config.settings import settings

EVERY = 10.0
"""Seconds between batches."""
PATIENCE = 60.0
"""Most seconds to wait for the last batch of a finished run."""
BATCH = 1000
"""Most metrics that MLflow takes at once."""


class Mirror:
    """Follows a metrics.jsonl that another process appends to; a context manager."""

    def __init__(self, path: Path, run: str, name: str, log: Callable[[str], None]) -> None:
        """Prepares a mirror.

        Args:
            path: the metric log.
            run: key of the run; its MLflow run bears it as tag `bloomery.run` and is found again by it.
            name: name of the run: the MLflow experiment.
            log: takes a line when MLflow does not answer.
        """
        self.path, self.run, self.name, self.log = path, run, name, log
        self._sent, self._inode = (found.st_size, found.st_ino) if (found := _stat(path)) else (0, 0)
        self._failed = False
        self._client: Any = None
        self._id = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mlflow-mirror", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._done.set()
        self._thread.join(timeout=PATIENCE if kind is None else 2)  # whoever stops a run waits for it to end

    def _follow(self) -> None:
        while not self._done.wait(EVERY):
            self._send()
        self._send()
        if self._failed:
            self._send()

    def _send(self) -> None:
        try:
            lines, end = self._new_lines()
            if lines:
                self._log_batches(lines)
            self._sent, self._failed = end, False
        except Exception as error:  # any: a mirror must not break what it shows
            if not self._failed:
                self.log(
                    f"MLflow at {settings().mlflow_url} fails, metrics stay in {self.path}: {error!s:.200}"
                )
            self._failed = True

    def _new_lines(self) -> tuple[list[dict[str, Any]], int]:
        found = _stat(self.path)
        if found is None:
            return [], 0
        if found.st_ino != self._inode:  # it was cut: what MLflow has of it already it takes only once
            self._sent, self._inode = 0, found.st_ino
        with open(self.path, "rb") as file:
            file.seek(self._sent)
            whole = file.read().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()], self._sent + len(whole) + bool(whole)

    def _log_batches(self, lines: list[dict[str, Any]]) -> None:
        if self._client is None:
            self._client, self._id = connect(self.name, self.run)
        from mlflow.entities import Metric

        metrics = [
            Metric(key, value, int(line["time"] * 1000), int(line["step"]))
            for line in lines
            for key, value in line.items()
            if key not in ("step", "time", "receipt")
        ]
        if read := [line for line in lines if "receipt" in line]:
            self._client.set_tag(self._id, "bloomery.receipt", f"{read[-1]['step']}:{read[-1]['receipt']}")
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + BATCH])


def _stat(path: Path) -> os.stat_result | None:
    return path.stat() if path.exists() else None


def open_client() -> Any:
    """MLflow's client.

    Raises:
        OSError: nothing listens there.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    url = httpx.URL(settings().mlflow_url)
    socket.create_connection((url.host, url.port or 80), timeout=5).close()  # before an import of seconds
    from mlflow import MlflowClient

    return MlflowClient(str(url))


def connect(name: str, run: str) -> tuple[Any, str]:
    """MLflow's client and the id of the MLflow run that mirrors `run`, made if absent."""
    client = open_client()
    experiment_id = _experiment(client, name)
    found = client.search_runs([experiment_id], f"tags.`bloomery.run` = '{run}'", max_results=1)
    if found:
        return client, found[0].info.run_id
    tags = {"bloomery.run": run}
    return client, client.create_run(experiment_id, tags=tags, run_name=f"train-{run[:12]}").info.run_id


def _experiment(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException as error:  # another made it meanwhile, or an answer of ours was lost
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    return str(found.experiment_id)
