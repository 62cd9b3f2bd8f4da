"""Starts the services of a profile in order, watches them, starts a dead one again, and stops what it
started.

    python -P -m bloomery.cluster.supervisor      (what `bloomery up` starts in the background)

It says how they are in HOME/run/services.json. It is a subreaper: whatever a service leaves behind becomes
its child, so that a stop finds the whole tree and nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from bloomery.artifacts.process import alive, mark
from bloomery.artifacts.store import open_store, probe
from bloomery.cluster.services import Service, services
from bloomery.config.settings import Settings, settings
from bloomery.errors import BloomeryError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL."""
REAP = 2.0
"""Seconds between looks for orphans that ended."""


@dataclass
class State:
    """How a service is."""

    state: str = "waiting"
    pid: int = 0
    starts: int = 0
    seconds: float = 0.0
    essential: bool = True


class Supervisor:
    """Runs until SIGTERM or SIGINT."""

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.folder = config.home / "run"
        self.logs = config.home / "logs"
        self.states: dict[str, State] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.began: dict[str, float] = {}
        self.stopping = False
        self.published, self.reaped = "", 0.0

    def run(self) -> None:
        """Starts all, watches them, and returns after all have been stopped."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self.logs.mkdir(parents=True, exist_ok=True)
        wanted = services(self.config)
        self.states = {service.name: State(essential=service.essential) for service in wanted}
        try:
            while not self.stopping:
                for service in wanted:
                    self._tend(service)
                self._publish()
                self._reap()
                time.sleep(0.25)
        finally:
            self._end_all()
            self._publish()

    def _stop(self, *_: Any) -> None:
        self.stopping = True

    def _tend(self, service: Service) -> None:
        state, process = self.states[service.name], self.processes.get(service.name)
        if state.state == "done" or not all(
            self.states[name].state in {"done", "ready"} for name in service.after
        ):
            return
        if process is None:
            if service.once and service.ready():
                state.state = "done"
            else:
                self._start(service)
            return
        code = process.poll()
        if code is None:
            if state.state == "starting" and not service.once and service.ready():
                state.state, state.seconds = "ready", round(time.monotonic() - self.began[service.name], 1)
        elif service.once and code == 0:
            state.state, state.seconds = "done", round(time.monotonic() - self.began[service.name], 1)
        else:
            died = time.monotonic() - self.began[service.name]
            state.state = "restarting"
            if died > min(30.0, 2.0 ** min(state.starts, 5)) or state.starts == 1:
                self._start(service)

    def _start(self, service: Service) -> None:
        state = self.states[service.name]
        with open(self.logs / f"{service.name}.log", "ab") as log:
            self.processes[service.name] = subprocess.Popen(
                service.argv,
                env=dict(service.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.config.home,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  one thread here
            )
        self.began[service.name] = time.monotonic()
        state.state, state.pid, state.starts = "starting", self.processes[service.name].pid, state.starts + 1

    def _publish(self) -> None:
        text = json.dumps({name: asdict(state) for name, state in self.states.items()}, indent=1)
        if text != self.published:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / ".services.json"
            temporary.write_text(text)
            temporary.replace(self.folder / "services.json")
            self.published = text

    def _reap(self) -> None:
        """Buries what was left to the subreaper; the services' own ends are for `_tend` to see."""
        if time.monotonic() - self.reaped < REAP:
            return
        self.reaped = time.monotonic()
        known = {process.pid for process in self.processes.values()}
        with _gone_is_fine():
            for orphan in psutil.Process().children():
                if orphan.pid not in known and orphan.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(orphan.pid, os.WNOHANG)

    def _end_all(self) -> None:
        deadline = time.monotonic() + GRACE
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in psutil.Process().children(recursive=True):
                with _gone_is_fine():
                    process.send_signal(number)
            while psutil.Process().children(recursive=True) and time.monotonic() < deadline:
                for child in psutil.Process().children():
                    with _gone_is_fine():
                        child.wait(0.2)
        for state in self.states.values():
            state.state, state.pid = "stopped", 0


class _gone_is_fine:  # noqa: N801  reads as a phrase
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> bool:
        return kind is not None and issubclass(kind, psutil.NoSuchProcess | psutil.TimeoutExpired)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def running(config: Settings) -> psutil.Process | None:
    """The supervisor of this home, if it runs."""
    try:
        marked = (config.home / "run" / "supervisor").read_text()
        return psutil.Process(int(marked.split(" ")[1])) if alive(marked) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def status(config: Settings) -> dict[str, State]:
    """How each service is, as the supervisor said last."""
    try:
        return {
            k: State(**v) for k, v in json.loads((config.home / "run" / "services.json").read_text()).items()
        }
    except (OSError, ValueError):
        return {}


def check_ports(config: Settings) -> None:
    """Refuses a busy port before anything starts.

    Raises:
        BloomeryError: names the port, its service, and the setting that moves it.
    """
    for service in services(config):
        for setting, port in service.ports.items():
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind(("127.0.0.1", port))
                except OSError as error:
                    raise BloomeryError(
                        f"port {port}, for {service.name}, is in use by another program",
                        f"stop that program, or choose another port: {setting}={port + 1}",
                    ) from error


def start(config: Settings) -> None:
    """Starts the supervisor in the background; returns at once. Running already is fine."""
    if running(config):
        return
    check_ports(config)
    probe(open_store(config.store_uri, config.s3_endpoint))
    (config.home / "logs").mkdir(parents=True, exist_ok=True)
    (config.home / "run").mkdir(parents=True, exist_ok=True)
    (config.home / "run" / "services.json").unlink(missing_ok=True)
    with open(config.home / "logs" / "supervisor.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bloomery.cluster.supervisor"],
            env={**os.environ, "BLOOMERY_HOME": str(config.home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=config.home,
        )
    (config.home / "run" / "supervisor").write_text(mark(process.pid))


def stop(config: Settings) -> bool:
    """Stops the supervisor and all it started; False when none runs."""
    process = running(config)
    if process is None:
        return False
    process.terminate()
    try:
        process.wait(GRACE + 10)
    except psutil.TimeoutExpired:
        for child in [*process.children(recursive=True), process]:
            with _gone_is_fine():
                child.kill()
    (config.home / "run" / "supervisor").unlink(missing_ok=True)
    return True


if __name__ == "__main__":
    Supervisor(settings()).run()
