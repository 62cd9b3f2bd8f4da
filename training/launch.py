"""The body of stage `train`: opens the run's journal, starts the ranks, follows them, leaves none behind.

body (this process, no torch) -> agent (torchrun's, own process group) -> ranks
   SIGTERM, an exception, a kill -9 of any of them: the tree below saves if it can, and ends within 20 seconds
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.journal import Journal
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore, S3Store
from bloomery.config.parallel import ParallelConfig
from bloomery.config.settings import settings
from bloomery.errors import BloomeryError
from bloomery.shards.dataset import Dataset
from bloomery.shards.lookup import Located, locate_known
from bloomery.shards.overlay import Overlay
from training.continuing import adopt, initial
from training.data import check_shards, open_job
from training.fit import check_fp8, check_memory
from training.job import (
    GRACE,
    REFUSED,
    REWOUND,
    STOPPED,
    Failure,
    Job,
    PeerFailedError,
    TrainingCrashedError,
    TrainingError,
    TrainingRewoundError,
    TrainingStoppedError,
)
from training.layout import Index, Standing, read_history
from training.metrics import cut
from training.mirror import Mirror
from training.standing import memory_folder, standing_checkpoints
from training.takedown import tombstones

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""Has glibc keep what a CPU rank frees. Else each step's gradients go back to the kernel, which zeroes them
anew page by page: 3 to 7 % of the CPU time of 100 M parameters and 8,192 tokens (benchmarks/train.py)."""
RESUMES = "run it again: it resumes from the last checkpoint"


def train(context: Context) -> dict[str, Artifact]:
    """Trains from the journal's head to the last step.

    Returns:
        checkpoint: folder of the last step, maybe of an earlier attempt's.
        history: canonical JSON of training.layout.History.

    Raises:
        TrainingError: another try would end the same way.
        TrainingCrashedError: a rank died.
        TrainingStoppedError: stopped on request; resumable.
        FencedError: a later attempt holds the run.
    """
    journal = Journal(context.store, context.key)
    with _sole_tree(context) as lock:
        head = journal.open(context.fence, run_facts(context))
        job = make_job(context, journal)
        if head is None and (head := adopt(context, journal, job)):
            job = make_job(context, journal)
        data, _ = open_job(job, Overlay())  # refuses what cannot be trained on, before any rank is started
        check_fp8(job.train, job.device)
        check_memory(job.train, job.parallel, data.dataset.manifest.policy.vocab_size, job.device)
        if head is None or head.step < data.feed.steps:
            check_shards(data.dataset, in_place=isinstance(context.store, LocalStore))
            context.log(f"metrics: {job.metrics}; logs of all ranks: {job.logs}")
            with (
                Mirror(job.metrics, context.key, context.about.get("name", "bloomery"), context.log),
                _forgetting(job),
            ):
                _to_the_end(context, journal, job, lock)
            head = journal.head()
    assert head is not None
    weights = journal.weights(head)
    folder = weights.local(context.scratch / "final")
    index = Index.read(folder, weights.output.digest)
    history = canonical(read_history(folder, index).model_dump(mode="json"))
    return {"checkpoint": weights, "history": context.blob("history", history)}


def _to_the_end(context: Context, journal: Journal, job: Job, lock: int) -> None:
    """Follows the ranks, and starts them again each time that the run goes back."""
    turn = 0
    while True:
        try:
            follow(job, context.log, lock)
            break
        except TrainingRewoundError:
            turn += 1
            job = make_job(context, journal, turn)


@contextlib.contextmanager
def _forgetting(job: Job) -> Iterator[None]:
    """Gives the memory of a run's snapshots back once no other attempt will start from them."""
    try:
        yield
    except BloomeryError as error:
        if not error.retry:
            shutil.rmtree(job.memory, ignore_errors=True)
        raise
    shutil.rmtree(job.memory, ignore_errors=True)


@contextlib.contextmanager
def _sole_tree(context: Context) -> Iterator[int]:
    """Waits until no process of an earlier attempt on this machine is left; yields the lock's descriptor.

    The agent inherits it: a tree whose task was killed, and which still saves, holds it until it ends.
    """
    path = settings().home / "run" / f"train-{context.key[:16]}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            context.log("waiting for the ranks of an earlier attempt, which save and stop")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def run_facts(context: Context) -> dict[str, str]:
    """What is kept with the journal's head for whoever evaluates its checkpoints."""
    names = {"shard": "shards", "tokenizer": "tokenizer", "mixture": "mixture"}
    sources = {stage: context.sources[name] for stage, name in names.items()}
    return {**context.about, **sources}


def make_job(context: Context, journal: Journal, turn: int = 0) -> Job:
    """The job of this attempt; fetches its inputs, and lists the checkpoints that it may go on from.

    `turn` counts how often the attempt's ranks went back.
    """
    parallel: ParallelConfig = context.execution.parallelism
    init = context.config.init_from
    place = settings().home / "logs" / "train" / context.key[:16]
    again = f"-{turn}" if turn else ""
    logs, scratch = place / f"{Path(context.attempt).name}{again}", context.scratch / f"ranks{again}"
    for folder in (logs, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    store, inputs = context.store, context.inputs
    memory, cache = memory_folder(store, context.key), settings().home / "cache" / "checkpoints"
    standing = standing_checkpoints(journal, memory, cache, context.fence)
    step, excluded = standing[0].step if standing else 0, journal.excluded()
    _abandon(journal, standing, context.fence)
    shards, dataset = inputs["shards"], inputs["shards"].output.digest
    metrics = place / "metrics.jsonl"
    return Job(
        train=context.config,
        parallel=parallel,
        device=parallel.device
        if parallel.device != "auto"
        else ("cuda" if shutil.which("nvidia-smi") else "cpu"),
        store=store.uri,
        s3_endpoint=store.endpoint if isinstance(store, S3Store) else None,
        run=context.key,
        fence=context.fence,
        began=journal.began(),
        attempt=context.attempt + (f"/{turn}" if turn else ""),
        excluded=excluded,
        shards=shards.local(scratch) if isinstance(store, LocalStore) else cache_folder(dataset),
        place=shards.place,
        dataset=dataset,
        mixture=inputs["mixture"].local(context.scratch / "inputs"),
        tables=settings().home / "cache" / "bins",
        tombstones=tombstones(store, dataset, step, lambda names: _known(shards, names)),
        receipts={
            number: receipt
            for number, receipt in cut(metrics, step).items()
            if not any(step <= gone < number for gone in excluded)
        },
        tokenizer=inputs["tokenizer"].local(context.scratch / "inputs"),
        tokenizer_digest=inputs["tokenizer"].output.digest,
        standing=standing,
        initial=initial(store, init, cache) if init and not standing and not init.loader else None,
        memory=memory,
        cache=cache,
        scratch=scratch,
        logs=logs,
        metrics=metrics,
    )


def _known(shards: Artifact, names: list[str]) -> dict[str, Located]:
    cache = settings().home / "cache" / "trace"
    dataset = Dataset.fetch(shards, cache)
    return locate_known(dataset, names, lambda name: shards.store.fetch(f"{shards.place}/{name}", cache))


def _abandon(journal: Journal, standing: tuple[Standing, ...], fence: int) -> None:
    """Moves the head back behind the steps that are excluded by now."""
    stored = [found.manifest for found in standing if found.manifest]
    live = journal.live()
    beyond = [checkpoint for checkpoint in live if checkpoint.digest not in stored]
    why = [f"step {step} is excluded: {why}" for step, why in journal.excluded().items()]
    if beyond and why:
        kept = [checkpoint for checkpoint in live if checkpoint.digest in stored]
        journal.rewind(kept[-1] if kept else None, fence, why[-1])


def cache_folder(dataset: str) -> Path:
    """Where this node keeps shards of a dataset in an object store, for all its ranks and runs."""
    return settings().home / "cache" / "shards" / dataset


def follow(job: Job, log: Callable[[str], None], lock: int) -> None:
    """Runs the job's ranks, passing on rank 0's lines; the tree holds `lock` until it ends.

    Raises:
        TrainingError, TrainingCrashedError, TrainingStoppedError: how it ended, if not well.
    """
    path = job.scratch / "job.json"
    path.write_text(job.model_dump_json())
    environment = {
        **os.environ,
        **(ALLOCATOR if job.device == "cpu" else {}),
        "TORCH_EXTENSIONS_DIR": str(job.scratch / "extensions"),  # a killed compiler's lock stays in here
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(job.parallel.threads),
        **({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if job.train.deterministic else {}),  # its fixed buffers
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-P", "-m", "training.agent", str(path)]
    with open(job.logs / "agent.log", "a") as agent_log, _stop_on_sigterm():
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=agent_log,
            text=True,
            errors="replace",
            process_group=0,
            pass_fds=(lock,),
        )
        try:
            _pump(process, log)
        except BaseException:
            _end(process, log)
            raise
        finally:
            process.wait()
    if process.returncode == REWOUND:
        raise TrainingRewoundError("the run goes back", RESUMES)
    if process.returncode == STOPPED:
        raise TrainingStoppedError("training was stopped from outside", RESUMES)
    if process.returncode:
        raise _cause(job, process.returncode)


def _pump(process: subprocess.Popen[str], log: Callable[[str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log(line.rstrip())


def _end(process: subprocess.Popen[str], log: Callable[[str], None]) -> None:
    """Asks the group to save and stop, and kills what is left after the grace."""
    with _deaf():
        log("stopping: the ranks save a checkpoint first")
        _signal(process, signal.SIGTERM)
        killer = threading.Timer(GRACE + 2, _signal, (process, signal.SIGKILL))
        killer.start()
        with contextlib.suppress(Exception):  # whoever listens may be gone
            _pump(process, log)
        process.wait()
        killer.cancel()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise where it would kill, so that the body ends its ranks before it ends itself.

    A handler that stands already, as Airflow's, raises what it likes. Only the main thread can have one.
    """

    def stop(number: int, _: FrameType | None) -> None:
        raise TrainingStoppedError(f"training was stopped by {signal.Signals(number).name}", RESUMES)

    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """In the main thread, ignores SIGTERM and SIGINT: the stop is under way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cause(job: Job, code: int) -> TrainingError | TrainingCrashedError:
    """The one line that says why: a signal that killed a rank, else the first exception of any rank."""
    found = {
        path.name: Failure.model_validate_json(path.read_bytes()) for path in job.logs.glob("*.failure.json")
    }
    agent = found.pop("agent.failure.json", None)
    if agent and agent.code < 0:
        cause, log = agent, f"rank-{agent.rank}.log"
    elif found:
        cause = min(
            found.values(), key=lambda failure: (failure.kind == PeerFailedError.__name__, failure.when)
        )
        log = f"rank-{cause.rank}.log"
    else:
        cause = agent or Failure(
            rank=-1, code=code, kind="", what=f"the agent ended with code {code}", when=0
        )
        log = f"rank-{agent.rank}.log" if agent else "agent.log"
    who = f"rank {cause.rank}: " if cause.rank >= 0 else ""
    what = f"{who}{cause.kind + ': ' if cause.kind else ''}{cause.what}"
    remedy = "; ".join(filter(None, [cause.remedy, f"log: {job.logs / log}"]))
    return TrainingError(what, remedy) if cause.code == REFUSED else TrainingCrashedError(what, remedy)
