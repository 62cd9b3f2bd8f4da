"""Where the time of a run goes, and what it is worth.

    clock   start | data | compute | communication | optimizer | checkpoint | held_out | other
            each second of a rank's life belongs to one of them, so they add up to wall time
    meter   tokens/s, TFLOP/s, MFU, goodput, progress, time left

"communication" is what the loop itself waits for: the sums over ranks at the end of a step, so the time that
slower ranks cost. DeepSpeed's own collectives run inside "compute" and "optimizer"; a trace (`profile`) shows
them. MFU is of the FLOPs that the model needs, with attention as if it were not causal (arXiv:2204.02311,
appendix B) and as it is; what is made again for the backward pass does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from bloomery.config.training import TrainConfig
from training.metrics import Values
from training.size import Size

Phase = Literal["start", "data", "compute", "communication", "optimizer", "checkpoint", "held_out", "other"]

PEAKS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "V100": 125e12,
}
"""Dense bf16 FLOP/s by a part of the GPU's name (of V100 fp16): NVIDIA's data sheets, without sparsity."""


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of a GPU by its name; None if it is not known."""
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


class Clock:
    """Gives each second since this process began to one phase."""

    def __init__(self) -> None:
        self._last = time.monotonic() - _age()
        self._phases: list[Phase] = ["start"]
        self._seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)

    def _tick(self) -> None:
        now = time.monotonic()
        self._seconds[self._phases[-1]] += now - self._last
        self._last = now

    def begin(self) -> None:
        """Ends the start: what is in no phase from here on is "other"."""
        self._tick()
        self._phases[0] = "other"

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """What is done in here is of a phase; the innermost counts."""
        self._tick()
        self._phases.append(phase)
        try:
            yield
        finally:
            self._tick()
            self._phases.pop()

    def take(self) -> Values:
        """Seconds of each phase since the last look, those that are not zero."""
        self._tick()
        found = {f"{phase}_seconds": seconds for phase, seconds in self._seconds.items() if seconds}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return found


def _age() -> float:
    """Seconds since this process was started (Linux, proc(5)); the clock of the wall is not asked."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


@dataclass
class Meter:
    """What a run's seconds are worth."""

    size: Size
    length: int
    """Tokens of a sequence."""
    ranks: int
    peak: float | None
    """FLOP/s that one rank's device could do; None where it is not known, as of a CPU."""
    tokens: int
    """Targets of the whole run."""
    began: float
    """When the run was first started, Unix time."""
    kept: float
    """Seconds of the steps that stayed."""

    @classmethod
    def of(
        cls,
        train: TrainConfig,
        vocab_size: int,
        ranks: int,
        device_name: str,
        tokens: int,
        began: float,
        kept: float,
    ) -> Meter:
        """The meter of a run; `device_name` is that of its GPUs, "" of none."""
        size = Size.of(train.model, vocab_size)
        return cls(size, train.sequence_length, ranks, peak_flops(device_name), tokens, began, kept)

    def step(self, targets: int, done: int, seconds: float) -> Values:
        """What is said of a step.

        Args:
            targets: of the step.
            done: of all steps so far.
            seconds: that the step took.
        """
        self.kept += seconds
        palm, causal = (self.size.flops(self.length, causal) * targets / seconds for causal in (False, True))
        wall = time.time() - self.began
        values = {
            "tokens": float(done),
            "tokens_per_second": targets / seconds,
            "tflops_per_rank": palm / self.ranks / 1e12,
            "goodput": min(1.0, self.kept / wall),
            "progress": done / self.tokens,
        }
        if done:  # at the pace of the whole run, with all that is not training
            values["eta_seconds"] = wall * (self.tokens - done) / done
        if self.peak:
            whole = self.ranks * self.peak
            values |= {"mfu": palm / whole, "mfu_causal": causal / whole}
        return values


def by_layer(squares: dict[str, float]) -> Values:
    """Gradient norms of each layer, and of what is in none, from the sums of squares of the weights."""
    sums: dict[str, float] = {}
    for name, square in squares.items():
        first, *rest = name.split(".")
        layer = f"layer_{int(rest[0]):03d}" if first == "layers" else first
        sums[layer] = sums.get(layer, 0.0) + square
    return {f"grad_norm/{layer}": total**0.5 for layer, total in sorted(sums.items())}
