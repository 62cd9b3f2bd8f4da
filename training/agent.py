"""The node agent: `python -P -m training.agent JOB.json` starts this node's ranks as torchrun does.

SIGTERM (the kernel also sends it when the launcher dies) is passed on to the ranks, which save and stop; who
has not within `GRACE` seconds is killed. Ranks die with the agent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from training.job import GRACE, STOPPED, Failure, Job, die_with_parent


def main() -> int:
    """Runs all ranks to their end; returns the exit code of the rank that ended them, 0 if none failed."""
    die_with_parent(signal.SIGTERM)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    job = Job.model_validate_json(Path(sys.argv[1]).read_bytes())
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.parallel.ranks,
        run_id=f"{job.run[:12]}-{job.fence}",
        rdzv_backend="c10d",
        rdzv_endpoint=str(job.scratch / "rendezvous"),
        rdzv_configs={"store_type": "file", "timeout": 60},  # a TCP store listens on every interface
        local_addr="127.0.0.1",
        max_restarts=0,  # a retry is the scheduler's business
        shutdown_timeout=GRACE,
    )
    try:
        launch_agent(config, sys.executable, ["-P", "-m", "training.main", sys.argv[1]])
    except SignalException:
        return STOPPED
    except ChildFailedError as error:
        # A rank that a signal killed is the cause, one with an exit code may have only lost its peer.
        rank, failure = min(
            error.failures.items(), key=lambda item: (item[1].exitcode >= 0, item[1].timestamp)
        )
        code = failure.exitcode
        what = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        Failure(rank=rank, code=code, kind="", what=what, when=time.time()).write(job.logs, "agent")
        return code if code > 0 else 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
