"""What a training attempt is told, and how it ends: for launcher, agent and ranks alike. No torch here."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from bloomery.config.base import Config
from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import TrainConfig
from bloomery.errors import BloomeryError, TransientError
from bloomery.shards.overlay import Tombstone
from training.layout import Standing

REWOUND = 76
"""Exit code: the journal excludes steps that the run was trained on; it begins again before them."""
STOPPED = 75
"""Exit code: stopped on request, a checkpoint is saved, resumable (EX_TEMPFAIL)."""
REFUSED = 65
"""Exit code: another try ends the same way, a person must change config or data (EX_DATAERR)."""


GRACE = 20
"""Seconds that ranks have to save when asked to stop."""


class TrainingError(BloomeryError):
    """Training cannot go on as it is configured: a non-finite loss, unusable data."""


class TrainingCrashedError(TransientError):
    """A rank died; a retry resumes from the last checkpoint."""


class TrainingStoppedError(TransientError):
    """Training was asked to stop and saved; a retry resumes."""


class TrainingRewoundError(TransientError):
    """The run goes back: the journal says which steps are excluded."""


class PeerFailedError(TransientError):
    """Another rank failed, so that this one cannot go on; the other says why."""


class Job(Config):
    """One attempt of one run."""

    train: TrainConfig
    parallel: ParallelConfig
    device: Literal["cpu", "cuda"]
    store: str
    s3_endpoint: str | None
    run: str
    """Key of the train stage: the run's name in the journal."""
    fence: int
    began: float
    """When the run was first started, Unix time."""
    attempt: str
    """Store key below which checkpoints are written."""
    shards: Path
    """The dataset's folder; of one in an object store its root and tables, and the cache of its shards."""
    place: str
    """Key of the dataset's folder in the store."""
    dataset: str
    """Digest of the dataset."""
    mixture: Path
    """Plan of the mixture."""
    tables: Path
    """Folder of the tables of bins."""
    tombstones: tuple[Tombstone, ...] = ()
    """Documents that were taken down, of the run's sources."""
    excluded: dict[int, str] = Field(default_factory=dict)
    """Steps whose batches are passed over, each with its reason."""
    receipts: dict[int, str] = Field(default_factory=dict)
    """Step -> receipt of an attempt that went beyond the checkpoint to resume from."""
    tokenizer: Path
    tokenizer_digest: str
    standing: tuple[Standing, ...] = ()
    """Checkpoints to go on from, the best first: the first that is good is taken."""
    initial: Standing | None = None
    """Checkpoint whose weights the run begins with, while it has none of its own."""
    memory: Path
    """Folder in this node's memory for the run's snapshots."""
    cache: Path
    """Folder on this node's disk for copies of checkpoints in an object store."""
    scratch: Path
    logs: Path
    metrics: Path
    """The run's metrics.jsonl."""


class Failure(Config):
    """How a rank, or the agent over the ranks, ended."""

    rank: int
    code: int
    kind: str
    what: str
    remedy: str = ""
    when: float

    def write(self, logs: Path, name: str) -> None:
        """Leaves it where the launcher looks."""
        (logs / f"{name}.failure.json").write_text(self.model_dump_json())

    @classmethod
    def of(cls, error: BaseException, rank: int, code: int) -> Failure:
        """The failure that an exception is."""
        what = error.what if isinstance(error, BloomeryError) else str(error).strip().split("\n")[0]
        remedy = error.remedy if isinstance(error, BloomeryError) else ""
        return cls(
            rank=rank, code=code, kind=type(error).__name__, what=what, remedy=remedy, when=time.time()
        )


def die_with_parent(death: signal.Signals) -> None:
    """Has the kernel send this process `death` when its parent dies, however that dies (Linux, prctl(2))."""
    pr_set_pdeathsig, parent = 1, os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, int(death))
    if os.getppid() != parent or parent == 1:
        os.kill(os.getpid(), death)
