"""Saves while training goes on: the step loop waits for a copy in memory, and for nothing else.

    snapshot   each rank copies what it owns into one of two slots in memory    the only wait
    write      each rank's writer hashes it, and brings it to the store         votes: ranks that are done
    commit     rank 0's writer publishes, once all ranks have written           votes: whether it has

The votes ride on a sum over ranks that the loop makes at every step anyway. A snapshot waits for the one
before it, so that one that stands is never overwritten while no other does.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

from bloomery.errors import BloomeryError
from training.checkpoint import check_coverage
from training.engine import Engine
from training.fragments import owned
from training.job import Job, PeerFailedError
from training.layout import STANDING, rank_file
from training.snapshot import Layout, Slot
from training.writer import Writer, attempt_folder

VOTES = 3
"""Values of a rank: has written, has committed, has failed."""
PAUSE = 0.003
"""Seconds between looks at the writers while the loop has nothing else to do."""


class Saved(NamedTuple):
    """A checkpoint that stands."""

    step: int
    digest: str
    """Of its content; on rank 0."""
    stored: bool
    """Whether it is in the store, or in memory alone."""


@dataclass
class _Save:
    """A checkpoint under way."""

    step: int
    about: dict[str, Any]
    """What the commit is told."""
    stored: bool
    digest: str = ""
    """Of this rank's file, once it is written."""
    committing: bool = False
    made: str = ""
    """Of the checkpoint's content, once it stands; on rank 0."""


@dataclass
class Saver:
    """One rank's part in saving."""

    job: Job
    engine: Engine
    rank: int
    ranks: int
    control: Any
    """Process group (gloo) of host-side values."""
    slots: tuple[Slot, Slot]
    writer: Writer
    in_memory: bool
    """Whether the slots are there; where there is no room they are on disk, and end with the attempt."""
    blocked: float = 0.0
    """Seconds that the loop has waited so far."""
    done: list[Saved] = field(default_factory=list)
    """What stands, and was not looked at yet."""
    _now: _Save | None = None
    _failed: BloomeryError | None = None
    _turns: int = 0

    @classmethod
    def start(cls, job: Job, engine: Engine, rank: int, ranks: int, control: Any) -> Saver:
        """Lays out the ranks' files, and starts a writer each. Collective.

        Raises:
            CheckpointError: the ranks' parts do not make every tensor once.
        """
        layout = Layout.of(owned(engine), rank_file(rank))
        found: list[Any] = [None] * ranks
        free = _free(job.memory)
        distributed.all_gather_object(found, (layout.parts, layout.tensors, layout.size, free), group=control)
        parts = tuple(part for theirs, *_ in found for part in theirs)
        tensors = {name: tensor for _, theirs, *_ in found for name, tensor in theirs.items()}
        check_coverage(tensors, parts)  # of one mind: all ranks have all parts
        fits = 2 * sum(size for *_, size, _ in found) < min(free for *_, free in found)
        folder = attempt_folder(job) if fits else job.scratch / "snapshots"
        path = job.scratch / f"writer-{rank}.json"
        path.write_text(job.model_dump_json())
        writer = Writer(path, job.logs / f"writer-{rank}.log")
        if rank == 0:
            constant = {
                "parts": [part.model_dump() for part in parts],
                "tensors": {name: tensor.model_dump() for name, tensor in tensors.items()},
            }
            writer.tell(do="begin", constant=constant)
        first, second = (Slot(folder / name / rank_file(rank), layout) for name in ("0", "1"))
        return cls(job, engine, rank, ranks, control, (first, second), writer, in_memory=fits)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.blocked += time.monotonic() - began

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        """An error waits for the next sum of votes: all ranks raise together."""
        try:
            yield
        except BloomeryError as error:
            self._failed = error

    def snapshot(
        self, step: int, state: dict[str, Any], history: dict[str, Any], score: float | None, stored: bool
    ) -> None:
        """Copies what this rank owns, and has it written while training goes on.

        Args:
            step: optimizer steps done.
            state: of the index, all but what the ranks' files say.
            history: of the run.
            score: held-out loss at the step.
            stored: whether it goes to the store, or stays in memory.

        Raises:
            BloomeryError: as `learn`, of the one before it.
        """
        self.wait()
        with self._waiting():
            slot, self._turns = self.slots[self._turns % 2], self._turns + 1
            folder = slot.path.parent
            if self.rank == 0:
                (folder / STANDING).unlink(missing_ok=True)
            place = f"{self.job.attempt}/checkpoint-{step:09d}" if stored else ""
            key = place and f"{place}/{slot.path.name}"
            with self._agreed():
                slot.copy(owned(self.engine))
                self.writer.tell(do="write", path=str(slot.path), key=key)
            about = {"state": state, "history": history, "score": score, "slot": str(folder), "place": place}
            self._now = _Save(step, about, stored)

    def votes(self) -> list[float]:
        """What this rank adds to the sum over ranks."""
        now = self._now
        if now is None:
            return [0.0] * VOTES
        if self._failed is None:
            with self._agreed():
                if not now.digest:
                    now.digest = self.writer.answer() or ""
                elif now.committing and self.rank == 0 and not now.made:
                    now.made = self.writer.answer() or ""
        return [float(bool(now.digest)), float(bool(now.made)), float(self._failed is not None)]

    def learn(self, sums: Sequence[float]) -> None:
        """Goes on by the sum of all ranks' votes.

        Raises:
            CheckpointError: a model's copy is not the rounded master: nothing is saved.
            BloomeryError: what this rank's writer failed with.
            PeerFailedError: another rank's failed.
        """
        now, (written, made, failed) = self._now, sums
        if failed:
            raise self._failed or PeerFailedError("another rank could not save", "see its log")
        if now is None:
            return
        if made:
            self.done.append(Saved(now.step, now.made, now.stored))
            self._now = None
        elif written == self.ranks and not now.committing:
            with self._waiting():
                now.committing = True
                self._commit(now)

    def _commit(self, now: _Save) -> None:
        mine = torch.frombuffer(bytearray.fromhex(now.digest), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.ranks)] if self.rank == 0 else None
        distributed.gather(mine, found, group=self.control)
        if found:
            files = {rank_file(rank): digest.numpy().tobytes().hex() for rank, digest in enumerate(found)}
            with self._agreed():
                self.writer.tell(do="commit", files=files, **now.about)

    def wait(self) -> None:
        """Waits until what is under way stands. Collective."""
        with self._waiting():
            while self._now:
                sums = torch.tensor(self.votes(), dtype=torch.float64)
                distributed.all_reduce(sums, group=self.control)
                self.learn(sums.tolist())
                time.sleep(PAUSE if self._now else 0)

    def close(self) -> None:
        """Waits for what is under way, and lets the writer end. Collective."""
        self.wait()
        self.writer.close()


def _free(folder: Path) -> int:
    """Bytes free where a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
