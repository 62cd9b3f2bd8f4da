"""One rank: `python -P -m training.main JOB.json`, started by the agent; what it prints goes to its log."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from bloomery.errors import BloomeryError
from training.job import (
    REFUSED,
    REWOUND,
    STOPPED,
    Failure,
    Job,
    TrainingRewoundError,
    TrainingStoppedError,
    die_with_parent,
)


def main() -> int:
    """Runs the rank that the environment names; returns its exit code."""
    die_with_parent(signal.SIGKILL)
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)  # a checkpoint is saved at the next step boundary
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job = Job.model_validate_json(Path(sys.argv[1]).read_bytes())
    console = os.dup(1)
    log = os.open(job.logs / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def say(line: str) -> None:
        print(line)
        with contextlib.suppress(BrokenPipeError):  # the launcher died: this rank saves and ends soon
            os.write(console, f"{line}\n".encode())

    try:
        from training.loop import train

        train(job, rank, ranks, stop=lambda: bool(asked), say=say)
    except TrainingStoppedError as stopped:
        if rank == 0:
            say(str(stopped))
        return STOPPED
    except TrainingRewoundError as rewound:
        if rank == 0:
            say(str(rewound))
        return REWOUND
    except Exception as error:
        traceback.print_exc()
        code = REFUSED if isinstance(error, BloomeryError) and not error.retry else 1
        Failure.of(error, rank, code).write(job.logs, f"rank-{rank}")
        return code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all that matters is on disk; tearing collectives down may wait for a peer that died
