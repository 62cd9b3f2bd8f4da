"""Peak memory of process trees: proportional set size (PSS), which counts a page shared by n processes 1/n
in each."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

PERIOD = 0.25
"""Seconds between samples."""


class Peak:
    """While it is open, samples a process and its descendants.

    Args:
        pid: root of the tree.
    """

    def __init__(self, pid: int) -> None:
        self.mb: dict[str, float] = defaultdict(float)
        """Largest sum of PSS at any moment, by kind of process ("java", "python") and of "all"; MB."""
        self._root, self._stop = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD):
            sums: dict[str, float] = defaultdict(float)
            for process in tree(self._root):
                name, size = kind_of(process), pss(process.pid) / 1e6
                sums[name] += size
                sums["all"] += size
            for name, size in sums.items():
                self.mb[name] = max(self.mb[name], size)


def tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants; none when it is gone."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kind_of(process: psutil.Process) -> str:
    """Name of its program without a version, as "java" and "python"; empty when it is gone."""
    try:
        return str(process.name()).rstrip("0123456789.")
    except psutil.NoSuchProcess:
        return ""


def pss(pid: int) -> int:
    """Proportional set size in bytes; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process tree so far, of processes that have ended and were waited for as well."""
    total = 0.0
    for process in tree(psutil.Process(pid)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
