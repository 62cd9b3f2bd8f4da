"""What every rank holds of the model is the same, bit by bit."""

from __future__ import annotations

import hashlib

from tests.training.ranks import forked
from tests.training.world import SPREAD, TINY
from training.loop import Run
from training.parallel import start_engine


def test_replicas_do_not_drift_apart(ranks):
    """After 10 clipped steps with rows cut between ranks."""
    job = ranks.job(TINY, SPREAD)

    def body(rank):
        start_engine("cpu")
        run = Run.start(job, rank, 2)
        for _ in range(10):
            run.advance(stop=False)
        sha = hashlib.sha256()
        for weight in run.engine.model.parameters():
            sha.update(weight.detach().numpy().tobytes())
        (job.logs / f"{rank}.sha256").write_text(sha.hexdigest())

    assert forked(2, job.logs, body) == [None, None]
    first, second = ((job.logs / f"{rank}.sha256").read_text() for rank in range(2))
    assert first == second
