"""What a person sees of a run."""

from __future__ import annotations

import io
import json
import math

from matplotlib.image import imread

from training.layout import HeldOut, History
from training.metrics import MetricLog, cut, step_line
from training.report import loss_curve, sparkline


def test_sparkline_falls_with_the_loss():
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1]) == "█▇▆▅▄▃▂▁"
    assert sparkline([1, math.nan, 2]) == "▁ █"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == ""
    long = sparkline([float(i) for i in range(1000)], width=20)
    assert len(long) == 20
    assert sorted(long) == list(long)


def test_loss_curve_is_a_picture_that_shows_both_losses():
    point = HeldOut(step=1, nats=10, tokens=2, bytes=4, loss=5.0, bits_per_byte=3.6)
    both = imread(io.BytesIO(loss_curve(History(loss=(5.0, 4.0, 3.0), held_out=(point,)))))
    alone = imread(io.BytesIO(loss_curve(History(loss=(5.0, 4.0, 3.0)))))
    assert both.shape == alone.shape == (540, 960, 4)
    assert both.std() > 0.05
    assert (both != alone).any()


def test_a_resume_cuts_the_log_back(tmp_path):
    path = tmp_path / "logs" / "metrics.jsonl"
    cut(path, 0)
    log = MetricLog(path)
    for step in (1, 2, 3):
        log.write(step, {"loss": 5.0 - step})
    with open(path, "a") as file:
        file.write('{"step": 1, "lo')  # a kill in mid-line
    cut(path, 2)
    MetricLog(path).write(3, {"loss": 9.0})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 4.0), (2, 3.0), (3, 9.0)]


def test_step_line():
    values = {
        "loss": 5.25,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "tokens_per_second": 12345.6,
        "seconds": 0.5,
    }
    line = step_line(40, 200, values)
    assert line == "step 40/200  loss 5.2500  lr 1.00e-03  grad 0.50  12,346 tokens/s  left 1m20s"
