"""A trace of some steps, for Perfetto or chrome://tracing: torch's profiler on rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.job import Job


class Profiler:
    """Watches the steps of a span, and writes what it saw once they are done."""

    def __init__(self, span: tuple[int, int] | None, path: Path) -> None:
        self._span, self._path = span, path
        self._running: Any = None

    @classmethod
    def of(cls, job: Job, rank: int) -> Profiler:
        """That of a rank of a job."""
        return cls(job.parallel.profile if rank == 0 else None, job.logs / "trace-rank-0.json")

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Around one step, from 0."""
        if self._span and self._span[0] <= step + 1 <= self._span[1] and self._running is None:
            from torch.profiler import profile

            self._running = profile()
            self._running.start()
        yield
        if self._span and self._running and step + 1 >= self._span[1]:
            self._running.stop()
            self._running.export_chrome_trace(str(self._path))
            self._running = self._span = None
