"""Loss curves: a picture of a run's history, and a line of text for a terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise

from training.layout import History

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """`values` as at most `width` bars, each the mean of its stretch; what is not finite is a gap."""
    if not values:
        return ""
    count = min(width, len(values))
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    means = [_mean(values[a:b]) for a, b in pairwise(cuts)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((m - low) * scale)] if math.isfinite(m) else " " for m in means)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def loss_curve(history: History) -> bytes:
    """A PNG of training and held-out loss by step; the title says bits per byte before and after."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(range(1, len(history.loss) + 1), history.losses, linewidth=1.2, label="training")
    if history.held_out:
        steps, losses = zip(*((h.step, h.loss) for h in history.held_out), strict=True)
        axes.plot(steps, losses, "o-", linewidth=1.2, markersize=4, label="held out")
        first, last = history.held_out[0], history.held_out[-1]
        axes.set_title(
            f"{first.bits_per_byte:.3f} bits per byte before, {last.bits_per_byte:.3f} after", fontsize=11
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a token")
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()
