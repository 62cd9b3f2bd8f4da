"""The run's metric log: one JSON object a line. It is the truth; MLflow only mirrors it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO

Values = dict[str, float]


class MetricLog:
    """Appends lines {"step": S, name: value, ...}."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = open(path, "a", buffering=1)  # noqa: SIM115  lives as long as the log

    def write(self, step: int, values: Values) -> None:
        """Logs values of `step`, with the time."""
        self._file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")


def cut(path: Path, step: int) -> None:
    """Drops the lines beyond `step`, which a run that resumes there writes again; makes the log's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        kept = [line for line in path.read_text().splitlines(keepends=True) if _within(line, step)]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(kept))
        os.replace(temporary, path)


def _within(line: str, step: int) -> bool:
    try:
        return line.endswith("\n") and json.loads(line)["step"] <= step
    except ValueError:  # a line that a kill cut short
        return False


def step_line(step: int, steps: int, values: Values, seconds_a_step: float) -> str:
    """The line of a step that a person reads."""
    left = int((steps - step) * seconds_a_step)
    return (
        f"step {step}/{steps}  loss {values['loss']:.4f}  lr {values['learning_rate']:.2e}  "
        f"grad {values['grad_norm']:.2f}  {values['tokens_per_second']:,.0f} tokens/s  "
        f"left {left // 60}m{left % 60:02d}s"
    )
