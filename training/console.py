"""What rank 0 logs and says of a run: a line of the metric log a step, and now and then one for a person."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.accounting import Meter, by_layer
from training.layout import HeldOut
from training.metrics import MetricLog, step_line
from training.saver import Saver

if TYPE_CHECKING:
    from training.loop import Run

QUIET = 2.0
"""Seconds between step lines."""


@dataclass
class Console:
    """What rank 0 logs and says."""

    log: MetricLog
    say: Callable[[str], None]
    meter: Meter
    said: float = 0.0

    def begun(self, run: Run) -> None:
        """Says what is trained on what, and which checkpoints were passed over."""
        where = f"on {run.job.device} ({run.job.parallel.mesh})"
        start = f"from step {run.step}" if run.step else "from the start"
        init = run.job.train.init_from
        if init and not run.step:
            start = f"from step 0 with the weights of {init.checkpoint[:12]}"
        self.say(f"{run.parameters:,} parameters, {where}, {start}")
        self.log.write(run.step, run.clock.take())
        if run.refused:
            self.log.write(run.step, {"checkpoints_refused": float(len(run.refused))})
        for what in run.refused:
            self.say(what)
        if not run.saver.in_memory:
            self.say(
                f"no room for two snapshots in {run.job.memory}: they are on disk, and end with the ranks"
            )

    def step(self, run: Run, seconds: float) -> None:
        """Logs a step, and says it now and then."""
        loss, norm, read = run.losses[-1], run.grad_norms[-1], run.read
        taken = loss is not None and norm is not None
        values = {
            **({"loss": loss, "grad_norm": norm} if loss is not None and norm is not None else {}),
            "learning_rate": run.rate(run.step - 1),
            "seconds": seconds,
            **self.meter.step(read.targets if taken else 0, run.tokens, seconds),
            **by_layer(run.squares),
            **run.clock.take(),
        }
        if read.damage:
            values["tokens_lost"] = float(sum(found.stop - found.start for found in read.damage))
            for found in read.damage:
                self.say(
                    f"tokens {found.start:,} .. {found.stop:,} of source {found.source} are damaged, "
                    f"other samples are read instead from step {run.step} on: {found.what}"
                )
        if run.verdict.why:
            values["steps_excluded"] = float(len(run.exclusions))
            done = "taken" if run.verdict.taken else "passed over"
            self.say(f"step {run.step} is {done}: {run.verdict.why}")
        self.log.write(run.step, values, run.receipt.now)
        if taken and (time.monotonic() - self.said > QUIET or run.step == run.steps):
            self.said = time.monotonic()
            self.say(step_line(run.step, run.steps, values))

    def measured(self, found: HeldOut) -> None:
        """Logs and says a held-out loss."""
        values = {"held_out_loss": found.loss, "held_out_bits_per_byte": found.bits_per_byte}
        self.log.write(found.step, values)
        self.say(
            f"held-out after step {found.step}: loss {found.loss:.4f}, "
            f"{found.bits_per_byte:.4f} bits per byte"
        )

    def saved(self, saver: Saver) -> None:
        """Says which checkpoints stand."""
        for found in saver.done:
            if found.stored:
                self.say(f"checkpoint of step {found.step}: {found.digest}")
        saver.done.clear()

    def ended(self, run: Run) -> None:
        """Logs the seconds since the last step."""
        self.log.write(run.step, run.clock.take())
