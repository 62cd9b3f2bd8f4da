"""The writer of a rank: a process without torch that hashes, copies and uploads while training goes on.

    {"do": "write", ...}   a file of a slot -> hashed in the same pass in which it goes to disk and store
    {"do": "commit", ...}  on rank 0, after every rank's file: history and index, then the journal

One JSON object a line on stdin, one answer a line on stdout. Until the journal's head has moved nothing is
visible, and a slot says that it stands after all else, so a kill at any point leaves the checkpoint before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.journal import FencedError, Journal, Retention
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import LocalStore, Store, StoreError, open_store
from bloomery.errors import BloomeryError, TransientError
from training.job import Job, die_with_parent
from training.layout import HISTORY, INDEX, STANDING, Index, Standing

KINDS = {kind.__name__: kind for kind in (FencedError, StoreError)}
"""Errors that keep their class on the way to the rank; others are retried, or not, as they say."""


class WriterDiedError(TransientError):
    """A rank's writer was killed; a retry resumes from the last checkpoint."""


class Writer:
    """The rank's end of its writer."""

    def __init__(self, job: Path, log: Path) -> None:
        command = [sys.executable, "-P", "-m", "training.writer", str(job)]
        # A stop is the rank's business, which still saves: the writer hears none from its birth on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        with open(log, "a") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.stdin and self._process.stdout
        self._to, self._from, self._log, self._read = self._process.stdin, self._process.stdout, log, b""
        os.set_blocking(self._from.fileno(), False)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def tell(self, **command: Any) -> None:
        """Sends a command; the one before it has been answered.

        Raises:
            WriterDiedError: the process is gone.
        """
        try:
            self._to.write(json.dumps(command).encode() + b"\n")
            self._to.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def answer(self) -> str | None:
        """What the last command made, a digest; None while it is at work.

        Raises:
            BloomeryError: what the command failed with.
            WriterDiedError: the process is gone.
        """
        while b"\n" not in self._read:
            found = self._from.read(1 << 16)
            if found is None:
                return None
            if not found:
                raise self._died()
            self._read += found
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "digest" in answer:
            return str(answer["digest"])
        kind = KINDS.get(answer["kind"], TransientError if answer["retry"] else BloomeryError)
        raise kind(answer["what"], answer["remedy"])

    def _died(self) -> WriterDiedError:
        code = self._process.wait()
        return WriterDiedError(f"the writer of a rank ended with code {code}", f"log: {self._log}")

    def close(self) -> None:
        """Lets the process end."""
        self._to.close()
        self._process.wait()


def write(job: Job, store: Store, path: Path, key: str) -> str:
    """Writes a slot's file to the store, if a `key` is named; returns its sha256.

    Of an object store the node's disk keeps a copy, so that a restart need not download it.
    """
    if not key:
        return file_digest(path)
    sha = hashlib.sha256()
    if not isinstance(store, LocalStore):
        LocalStore(job.cache).upload(path, key)
    store.upload(path, key, sha)
    return sha.hexdigest()


def commit(
    job: Job,
    store: Store,
    state: dict[str, Any],
    history: dict[str, Any],
    files: dict[str, str],
    score: float | None,
    slot: Path,
    place: str,
) -> str:
    """Makes a checkpoint stand: in its slot, and before that in the journal if it has a `place` in the store.

    Args:
        job: the attempt.
        store: of the run.
        state: of the index, all but its files.
        history: of the run.
        files: sha256 of the ranks' files.
        score: held-out loss at its step.
        slot: folder of the ranks' files in memory.
        place: key of the checkpoint's folder; "" if it only stands in memory.

    Returns:
        The content digest.

    Raises:
        FencedError: a later attempt holds the run; nothing was published.
    """
    told = canonical(history)
    index = Index.model_validate({**state, "files": {**files, HISTORY: sha256(told)}})
    for name, data in ((HISTORY, told), (INDEX, index.to_bytes())):
        (slot / name).write_bytes(data)
        if place:
            write(job, store, slot / name, f"{place}/{name}")
    excluded = [exclusion.step for exclusion in index.exclusions]
    found = Standing(
        step=index.step, digest=index.digest, fence=job.fence, place=place, excluded=tuple(excluded)
    )
    if place:
        facts = {
            "step": index.step,
            **({} if score is None else {"held_out": score}),
            **({"excluded": excluded} if excluded else {}),
        }
        weights = Artifact(Output(digest=index.digest, tokens=index.tokens, facts=facts), place, store)
        parallel = job.parallel
        keep = Retention(parallel.keep_last, parallel.keep_every, parallel.keep_best)
        Journal(store, job.run).append(index.step, weights, job.fence, index.receipt, keep)
    (slot / f".{STANDING}").write_text(found.model_dump_json())
    os.replace(slot / f".{STANDING}", slot / STANDING)
    _tidy(job, place)
    return index.digest


def _tidy(job: Job, place: str) -> None:
    """Drops snapshots of earlier attempts, and copies on this node's disk of older checkpoints."""
    for other in job.memory.glob("*"):
        if other < attempt_folder(job):
            shutil.rmtree(other, ignore_errors=True)
    copies = job.cache / f"data/train/{job.run}"
    for copy in copies.glob("*/checkpoint-*") if place else ():
        if copy != job.cache / place:
            shutil.rmtree(copy, ignore_errors=True)


def attempt_folder(job: Job) -> Path:
    """Where an attempt's slots are."""
    return job.memory / f"{job.fence:06d}"


def main() -> None:
    """Serves a rank until it closes the pipe or dies."""
    die_with_parent(signal.SIGKILL)
    os.nice(10)  # the rank computes meanwhile
    job = Job.model_validate_json(Path(sys.argv[1]).read_bytes())
    store, constant = open_store(job.store, job.s3_endpoint), dict[str, Any]()
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any]
        try:
            match command.pop("do"):
                case "begin":
                    constant = command["constant"]
                    continue
                case "write":
                    answer = {"digest": write(job, store, Path(command["path"]), command["key"])}
                case "commit":
                    slot, state = Path(command.pop("slot")), {**constant, **command.pop("state")}
                    answer = {"digest": commit(job, store, state, slot=slot, **command)}
        except BloomeryError as error:
            answer = {
                "kind": type(error).__name__,
                "what": error.what,
                "remedy": error.remedy,
                "retry": error.retry,
            }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
