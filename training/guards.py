"""What is done about a step that would harm the model: decided before any weight is touched, on all ranks.

    loss, gradient norm of all ranks -> not finite          -> passed over; too many in a row end the run
                                     -> far above the last  -> logged, passed over, or the run goes back

A step that is passed over counts: number, schedule and data go on, the weights do not. So a run that goes
back past it and one that never saw it end with the same bytes. "Far above" is as OLMo-core's
SkipStepOptimizer has it: more than 6 standard deviations above the mean of 128 losses.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from bloomery.config.training import GuardsConfig


class Verdict(NamedTuple):
    """What is to be done about a step."""

    why: str = ""
    """What is wrong with it; empty if nothing is."""
    taken: bool = True
    back: bool = False
    """Whether the run goes back."""


class Guard:
    """Judges each step of a run by those before it: a pure function of the losses."""

    def __init__(self, config: GuardsConfig, losses: Iterable[float | None] = ()) -> None:
        """Begins after some steps, whose losses are known."""
        self.config, self.skipped = config, 0
        self._recent: deque[float] = deque(maxlen=config.window)
        for loss in losses:
            self.passed_over() if loss is None else self.taken(loss)

    def judge(self, loss: float, norm: float) -> Verdict:
        """The verdict on a step, before it is taken.

        Args:
            loss: mean of the step's targets, in nats.
            norm: of the gradient, over all ranks.
        """
        for what, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                return Verdict(f"{what} is {value}", taken=False)
        bound = self.bound()
        if loss <= bound:
            return Verdict()
        why = f"loss {loss:.4f} is above {bound:.4f}, {self.config.sigmas:g} sigma over the mean"
        return Verdict(why, taken=self.config.spike == "log", back=self.config.spike == "rewind")

    def bound(self) -> float:
        """The greatest loss that is no spike; infinite until the window is full."""
        if len(self._recent) < self.config.window:
            return math.inf
        return statistics.fmean(self._recent) + self.config.sigmas * statistics.pstdev(self._recent)

    def taken(self, loss: float) -> None:
        """Notes that a step was taken."""
        self.skipped = 0
        self._recent.append(loss)

    def passed_over(self) -> None:
        """Notes that a step was not."""
        self.skipped += 1
