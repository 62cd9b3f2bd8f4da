"""The run's metric log: one JSON object a line. It is the truth; MLflow only mirrors it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

Values = dict[str, float]


class MetricLog:
    """Appends lines {"step": S, name: value, ...}."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = open(path, "a", buffering=1)  # noqa: SIM115  lives as long as the log

    def write(self, step: int, values: Values, receipt: str = "") -> None:
        """Logs values of `step`, with the time, and of a training step with its receipt."""
        about = {"step": step, "time": time.time(), **values}
        self._file.write(json.dumps(about | ({"receipt": receipt} if receipt else {})) + "\n")


def cut(path: Path, step: int) -> dict[int, str]:
    """Drops the lines beyond `step`, which a run that resumes there writes again; makes the log's folder.

    Returns:
        Step -> receipt of those lines, up to the first that lost tokens: whoever reads on may have a copy.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, receipts, lost = [], {}, False
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        about = _parsed(line)
        if about and about["step"] <= step:
            kept.append(line)
        lost = lost or bool(about and about.get("tokens_lost"))
        if about and about["step"] > step and "receipt" in about and not lost:
            receipts[about["step"]] = about["receipt"]
    if path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(kept))
        os.replace(temporary, path)
    return receipts


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line)) if line.endswith("\n") else None
    except ValueError:  # a line that a kill cut short
        return None


def kept_seconds(path: Path) -> float:
    """Seconds of the steps that the log holds: those that stayed."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return sum((_parsed(line) or {}).get("seconds", 0.0) for line in lines)


def step_line(step: int, steps: int, values: Values) -> str:
    """The line of a step that a person reads."""
    left = int((steps - step) * values["seconds"])
    worth = f"MFU {values['mfu']:.1%}  " if "mfu" in values else ""
    return (
        f"step {step}/{steps}  loss {values['loss']:.4f}  lr {values['learning_rate']:.2e}  "
        f"grad {values['grad_norm']:.2f}  {values['tokens_per_second']:,.0f} tokens/s  {worth}"
        f"left {left // 60}m{left % 60:02d}s"
    )
