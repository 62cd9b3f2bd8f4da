"""Which checkpoint a run goes on from: the newest good one of all tiers, the same on every rank.

what stands, the best first (training/standing.py)
-> index of its digest? files of their hashes? all ranks agree -> taken
   a damaged one is refused with its file named, and the next is tried
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from bloomery.artifacts.journal import Checkpoint, Journal
from bloomery.artifacts.manifest import read_manifest
from bloomery.artifacts.store import LocalStore, Store, StoreError, open_store
from training.checkpoint import Reader, check_coverage
from training.job import Job
from training.layout import HISTORY, CheckpointError, History, Standing, rank_file
from training.metrics import cut


class Chosen(NamedTuple):
    """The checkpoint that a run goes on from."""

    standing: Standing
    reader: Reader
    history: History
    refused: tuple[str, ...]
    """What is wrong with those that would have been better."""


def choose(job: Job, rank: int, ranks: int, agree: Callable[[str], list[str]]) -> Chosen | None:
    """The best checkpoint that is good; None where the run has none. Collective: each file is read once.

    Args:
        job: the attempt.
        rank: this rank.
        ranks: all of them.
        agree: every rank's word, given this one's: what is wrong, or "".

    Raises:
        CheckpointError: none is good.
    """
    refused: list[str] = []
    store = open_store(job.store, job.s3_endpoint)
    for found in job.standing:
        wrong, reader, history = "", None, History()
        try:
            reader = Reader(found.folder, found.digest, _download(store, found))
            files = [*(rank_file(number) for number in range(reader.index.ranks)), HISTORY]
            for name in files[rank::ranks]:
                reader.verified(name)
            history = History.model_validate_json(reader.verified(HISTORY).read_bytes())
            check_coverage(reader.index.tensors, reader.index.parts)
        except CheckpointError as error:
            wrong = error.what
        if said := [what for what in agree(wrong) if what]:
            refused.append(f"the checkpoint of step {found.step} is refused: {said[0]}")
            continue
        assert reader
        return Chosen(found, reader, history, tuple(refused))
    if refused:
        raise CheckpointError(
            f"none of the run's checkpoints is good: {'; '.join(refused)}",
            "bring the files back, or start a new run: another train.seed is another run",
        )
    return None


def open_standing(job: Job, found: Standing) -> Reader:
    """A checkpoint of another run, whole.

    Raises:
        CheckpointError: it is damaged.
    """
    reader = Reader(found.folder, found.digest, _download(open_store(job.store, job.s3_endpoint), found))
    check_coverage(reader.index.tensors, reader.index.parts)
    return reader


def _download(store: Store, found: Standing) -> Callable[[str], None] | None:
    """Brings a file of a checkpoint in an object store to where its copies are kept, anew."""
    if isinstance(store, LocalStore) or not found.place:
        return None

    def again(name: str) -> None:
        path = found.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                store.download(f"{found.place}/{name}", file)
            os.replace(temporary, path)
        except StoreError as error:
            raise CheckpointError(f"{found.place}/{name}: {error.what}", error.remedy) from error
        finally:
            temporary.unlink(missing_ok=True)

    return again


def settle(job: Job, chosen: Chosen) -> dict[int, str]:
    """On one rank: journal and metric log begin again where the run does; what is beyond was refused.

    Returns:
        Step -> receipt of what the log held beyond.

    Raises:
        FencedError: a later attempt holds the run.
    """
    journal = Journal(open_store(job.store, job.s3_endpoint), job.run)
    head = journal.head()
    if chosen.standing.manifest and head and head.digest != chosen.standing.manifest:
        to = Checkpoint(read_manifest(journal.store, chosen.standing.manifest))
        journal.rewind(to, job.fence, "; ".join(chosen.refused))
    return cut(job.metrics, chosen.standing.step)
