"""Real ranks, forked from this process after one import of torch and DeepSpeed (9 s of CPU)."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

from bloomery.artifacts.journal import Checkpoint, Journal
from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import LocalStore, S3Store
from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import TrainConfig
from tests.training.world import SPREAD, TINY, World
from training.job import Failure, Job
from training.layout import Standing
from training.standing import standing_checkpoints

os.environ["DS_ACCELERATOR"] = "cpu"


class Ranks:
    """Runs attempts of one run of a world; each attempt has a higher fence."""

    def __init__(self, world: World, folder: Path, run: str) -> None:
        self.world, self.folder, self.fence = world, folder, 0
        self.run = run
        self.journal = Journal(world.store, self.run)

    def job(
        self,
        train: TrainConfig = TINY,
        parallel: ParallelConfig = SPREAD,
        resume: Checkpoint | None = None,
        memory: str = "",
        **about: object,
    ) -> Job:
        """The next attempt's job; opens the journal for it."""
        self.fence += 1
        self.journal.open(self.fence, {"config": "0" * 64, "name": "tiny", **self.world.sources()})
        scratch = self.folder / f"attempt-{self.fence}"
        scratch.mkdir(parents=True)
        store = self.world.store
        shards = artifact(store, self.world.upstream["shard"], "shards")
        tokenizer = artifact(store, self.world.upstream["tokenizer"], "tokenizer")
        return Job(
            train=train,
            parallel=parallel,
            device="cpu",
            store=store.uri,
            s3_endpoint=store.endpoint if isinstance(store, S3Store) else None,
            run=self.run,
            fence=self.fence,
            began=self.journal.began(),
            attempt=f"data/train/{self.run}/{self.fence:06d}",
            shards=shards.local(self.folder) if isinstance(store, LocalStore) else self.folder / "cache",
            place=shards.place,
            dataset=shards.output.digest,
            mixture=artifact(store, self.world.upstream["mixture"], "plan").local(self.folder),
            tables=self.folder / "tables",
            **{"excluded": self.journal.excluded(), **about},
            tokenizer=tokenizer.local(self.folder),
            tokenizer_digest=tokenizer.output.digest,
            standing=tuple(self.standing(resume, memory)) if resume else (),
            memory=self.folder / (memory or f"memory-{self.fence}"),
            cache=self.folder / "copies",
            scratch=scratch,
            logs=scratch,
            metrics=scratch / "metrics.jsonl",
        )

    def standing(self, newest: Checkpoint | None = None, memory: str = "") -> list[Standing]:
        """What the launcher finds to go on from in the store and in a node's memory, up to a checkpoint."""
        folder, copies = self.folder / (memory or "no memory"), self.folder / "copies"
        found = standing_checkpoints(self.journal, folder, copies, self.fence + 1)
        return [one for one in found if newest is None or one.step <= newest.step]

    def train(self, job: Job, stop_at: int | None = None) -> list[Failure | None]:
        """Runs a job's ranks; how each ended, None for well. Rank 0 asks to stop in step `stop_at`."""
        return forked(job.parallel.ranks, job.logs, lambda rank: _train(job, rank, stop_at))

    def at(self, step: int) -> Checkpoint:
        """The live checkpoint of a step."""
        return next(checkpoint for checkpoint in self.journal.live() if checkpoint.step == step)


def _train(job: Job, rank: int, stop_at: int | None) -> None:
    from training.loop import train

    calls = iter(range(1, 1 << 30))
    train(job, rank, job.parallel.ranks, stop=lambda: next(calls) == stop_at and rank == 0)


def forked(
    ranks: int, logs: Path, body: Callable[[int], None], killed: Collection[int] = ()
) -> list[Failure | None]:
    """Runs `body` in forked ranks under the environment that torchrun gives; some may be `killed`."""
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401  what an engine's start imports
    import torch

    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(rank, ranks, port, logs, body)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
            process.join()
    ended = []
    for rank, process in enumerate(processes):
        path = logs / f"rank-{rank}.failure.json"
        ended.append(Failure.model_validate_json(path.read_bytes()) if path.exists() else None)
        assert process.exitcode == 0 or ended[-1] or rank in killed, (
            f"rank {rank} ended with {process.exitcode}"
        )
    return ended


def _rank(rank: int, ranks: int, port: int, logs: Path, body: Callable[[int], None]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        TORCH_EXTENSIONS_DIR=str(logs / "extensions"),
    )
    code = 0
    try:
        body(rank)
    except BaseException as error:
        traceback.print_exc()
        Failure.of(error, rank, 1).write(logs, f"rank-{rank}")
        code = 1
    os._exit(code)
