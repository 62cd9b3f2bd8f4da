"""A run in the terminal, as its metric log tells it: `bloomery watch RUN`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import get_args

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from training.accounting import Phase
from training.metrics import Values
from training.report import sparkline

EVERY = 1.0
"""Seconds between looks at the log."""
RATES = {
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "tflops_per_rank": ("TFLOP/s a rank", "{:,.3f}"),
    "mfu": ("MFU", "{:.1%}"),
    "mfu_causal": ("MFU, causal", "{:.1%}"),
    "goodput": ("goodput", "{:.1%}"),
    "grad_norm": ("gradient norm", "{:.3f}"),
    "learning_rate": ("learning rate", "{:.2e}"),
    "held_out_loss": ("held-out loss", "{:.4f}"),
    "steps_excluded": ("steps passed over", "{:.0f}"),
}


class Seen:
    """What a metric log says so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self.last: Values = {}
        """Newest value of each name."""
        self.losses: list[float] = []
        self.seconds: dict[str, float] = {}
        """Of each phase, since the log begins."""

    def look(self) -> None:
        """Reads the lines that are new, or all if the log was cut back."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._read:
            self._forget()
        with open(self._path, "rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + bool(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, line: Values) -> None:
        self.last |= line
        if "loss" in line:
            self.losses.append(line["loss"])
        for phase in get_args(Phase):
            self.seconds[phase] = self.seconds.get(phase, 0.0) + line.get(f"{phase}_seconds", 0.0)

    @property
    def done(self) -> bool:
        """Whether the run has read its last token."""
        return self.last.get("progress", 0.0) >= 1.0

    def shown(self) -> RenderableType:
        """Progress, rates, and where the time went."""
        if "progress" not in self.last:
            return "no step is done yet"
        bar = Progress(TextColumn("step {task.fields[step]:,.0f}"), BarColumn(), TaskProgressColumn())
        bar.add_task("", total=1000, completed=int(1000 * self.last["progress"]), step=self.last["step"])
        left = int(self.last.get("eta_seconds", 0.0))
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_row("left", f"{left // 3600}h{left // 60 % 60:02d}m{left % 60:02d}s")
        table.add_row("loss", f"{self.losses[-1]:.4f}  {sparkline(self.losses)}" if self.losses else "")
        for name, (label, form) in RATES.items():
            if name in self.last:
                table.add_row(label, form.format(self.last[name]))
        whole = sum(self.seconds.values()) or 1.0
        spent = "  ".join(f"{name} {part / whole:.1%}" for name, part in self.seconds.items() if part)
        table.add_row("time", spent)
        return Group(bar, table)


def watch(path: Path, console: Console) -> None:
    """Shows a run until it is done; where nobody watches, as it is now."""
    seen = Seen(path)
    seen.look()
    if not console.is_terminal:
        console.print(seen.shown())
        return
    with Live(seen.shown(), console=console) as live:
        while not seen.done:
            time.sleep(EVERY)
            seen.look()
            live.update(seen.shown())
