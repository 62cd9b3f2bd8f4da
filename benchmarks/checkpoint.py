"""Saving against torch's distributed checkpoint (DCP): the same state, by turns, in the same two ranks.

    ours   snapshot in memory; a writer process hashes, copies and commits while steps go on
    sync   the same, and the loop waits until it stands
    dcp    torch.distributed.checkpoint.async_save with a process group of its own and cached staging

Blocked is what the step loop waits for, on the slower rank: the call, what is asked of it in later steps, and
the wait for a save that is not done when the next one begins. The best of the saves after the first counts.
Both fsync. Ours also compares masters with the model's copies while the loop waits, and hashes what it writes
and reads; DCP checks nothing. `make bench-checkpoint`
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch import distributed  # noqa: E402
from torch.distributed import checkpoint as dcp  # noqa: E402

from benchmarks.claims import Claim, report  # noqa: E402
from bloomery.artifacts.journal import Journal  # noqa: E402
from bloomery.artifacts.store import LocalStore  # noqa: E402
from bloomery.config.model import ModelConfig  # noqa: E402
from bloomery.config.parallel import ParallelConfig  # noqa: E402
from bloomery.config.training import TrainConfig  # noqa: E402
from training.checkpoint import Reader, fill  # noqa: E402
from training.engine import Engine, Rows  # noqa: E402
from training.fragments import create_state, owned, refresh  # noqa: E402
from training.job import Job  # noqa: E402
from training.parallel import start_engine  # noqa: E402
from training.saver import Saver  # noqa: E402
from training.standing import MEMORY  # noqa: E402

RANKS, VOCABULARY, LENGTH, SAVES, STEPS = 2, 32_000, 64, 6, 3
"""Saves of each kind, steps after each."""
TRAIN = TrainConfig(model=ModelConfig(layers=8, width=512, heads=8, kv_heads=8, ffn_width=1376))
PARALLEL = ParallelConfig(ranks=RANKS, micro_batch=2, device="cpu", keep_last=1)


class Bench:
    """One rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        start_engine("cpu", f"file://{folder / 'meet'}")
        torch.set_num_threads(1)
        self.folder, self.rank, self.seconds = folder, rank, list[float]()
        self.control = distributed.new_group(backend="gloo")
        self.apart = distributed.new_group(backend="gloo")
        self.engine = Engine.start(TRAIN, PARALLEL, VOCABULARY)
        create_state(self.engine.deepspeed, 0)
        self.job = job(folder)
        self.saver = Saver.start(self.job, self.engine, rank, RANKS, self.control)

    def step(self, poll: Callable[[], None] = lambda: None) -> None:
        """Trains a step, and looks after what is under way."""
        began = time.monotonic()
        ids = torch.randint(0, VOCABULARY, (2, LENGTH + 1))
        rows = Rows(ids[:, :-1], torch.arange(LENGTH).expand(2, -1), ids[:, 1:])
        self.engine.forward_backward([rows], 2 * LENGTH * RANKS)
        self.engine.step(1e-4, 1.0)
        poll()
        self.seconds.append(time.monotonic() - began)

    def poll(self) -> None:
        """What the loop's own all-reduce carries in a run."""
        sums = torch.tensor(self.saver.votes(), dtype=torch.float64)
        distributed.all_reduce(sums, group=self.control)
        self.saver.learn(sums.tolist())

    def ours(self, number: int, wait: bool) -> float:
        """Blocked seconds of a save."""
        before = self.saver.blocked
        self.saver.snapshot(number, index_state(number), {}, None, stored=True)
        if wait:
            self.saver.wait()
        for _ in range(STEPS):
            self.step(self.poll)
        return self.saver.blocked - before

    def dcp(self, writer: list[Any]) -> float:
        """Blocked seconds of DCP's; `writer` has the future of the one before it, and the stager."""
        began = time.monotonic()
        if writer[0]:
            writer[0].result()
        state = {
            f"{part.name}/{kind}/{self.rank}": view
            for part in owned(self.engine)
            for kind, view in part.state.items()
        }
        writer[0] = dcp.async_save(
            state,
            checkpoint_id=self.folder / "dcp",
            process_group=self.apart,
            async_stager=writer[1],
        )
        blocked = time.monotonic() - began
        for _ in range(STEPS):
            self.step()
        return blocked

    def load_ours(self) -> float:
        """Seconds to verify and load, in place."""
        distributed.barrier()
        began = time.monotonic()
        place = max((self.folder / "store" / self.job.attempt).iterdir())
        digest = self.saver.done[-1].digest if self.rank == 0 else ""
        told = [digest]
        distributed.broadcast_object_list(told)
        fill(self.engine, Reader(place, told[0]))
        refresh(self.engine.deepspeed)
        distributed.barrier()
        return time.monotonic() - began

    def load_dcp(self) -> float:
        """Seconds to load, in place."""
        distributed.barrier()
        began = time.monotonic()
        state = {
            f"{part.name}/{kind}/{self.rank}": view
            for part in owned(self.engine)
            for kind, view in part.state.items()
        }
        dcp.load(state, checkpoint_id=self.folder / "dcp")
        refresh(self.engine.deepspeed)
        distributed.barrier()
        return time.monotonic() - began


def job(folder: Path) -> Job:
    """An attempt of a run of which only the saving is real."""
    nowhere = folder / "none"
    return Job(
        train=TRAIN,
        parallel=PARALLEL,
        device="cpu",
        store=str(folder / "store"),
        s3_endpoint=None,
        run="b" * 64,
        fence=1,
        attempt="data/train/bench/1",
        shards=nowhere,
        place="",
        dataset="",
        mixture=nowhere,
        tables=nowhere,
        tokenizer=nowhere,
        tokenizer_digest="",
        memory=MEMORY / f"bloomery-{folder.name}",
        cache=nowhere,
        scratch=folder,
        logs=folder,
        metrics=nowhere,
        began=time.time(),
    )


def index_state(step: int) -> dict[str, Any]:
    """What an index says beside tensors."""
    words = {"before": "", "receipt": "", "dataset": "", "tokenizer": ""}
    counts = {
        "step": step,
        "updates": step,
        "samples": 0,
        "tokens": 0,
        "vocab_size": VOCABULARY,
        "ranks": RANKS,
    }
    return {**words, **counts, "overlay": {}, "config": {}, "code": {}}


def measure(folder: Path, rank: int) -> None:
    """All saves of a rank, by turns; leaves what they took."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    bench = Bench(folder, rank)
    staging = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    writer: list[Any] = [None, DefaultStager(staging)]
    found: dict[str, list[float]] = {"ours": [], "sync": [], "dcp": []}
    bench.step()
    for number in range(1, SAVES + 1):
        found["ours"].append(bench.ours(2 * number, wait=False))
        bench.saver.wait()
        found["sync"].append(bench.ours(2 * number + 1, wait=True))
        found["dcp"].append(bench.dcp(writer))
        writer[0].result()
    loads = {"load ours": [bench.load_ours()], "load dcp": [bench.load_dcp()]}
    steps = {"step": [statistics.median(bench.seconds)]}
    (folder / f"{rank}.json").write_text(json.dumps(found | loads | steps))
    bench.saver.close()


def main() -> None:
    """Runs both ranks, and reports."""
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as name:
        folder = Path(name)
        Journal(LocalStore(folder / "store"), "b" * 64).open(1)
        around = {**os.environ, "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        around |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }  # asked for, and not used: they meet by a file
        ranks = [
            subprocess.Popen(
                [sys.executable, "-P", __file__, name, str(rank)],
                env={**around, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]
        try:
            if any(process.wait() for process in ranks):
                sys.exit("a rank failed")
        finally:
            shutil.rmtree(job(folder).memory, ignore_errors=True)
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
        size = lambda place: sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) / 1e6  # noqa: E731
        newest = max((folder / "store" / "data/train/bench/1").iterdir())
        megabytes = {"ours": size(newest), "dcp": size(folder / "dcp")}
    slower = {
        kind: [max(pair) for pair in zip(*(one[kind] for one in found), strict=True)] for kind in found[0]
    }
    blocked = {kind: min(slower[kind][1:]) for kind in ("ours", "sync", "dcp")}
    print(f"{megabytes['ours']:,.0f} MB; a step takes {slower['step'][0]:.2f} s without a save")
    for kind, seconds in slower.items():
        print(f"{kind}: {' '.join(f'{value:.3f}' for value in seconds)} s")
    report(
        "checkpoint",
        [
            Claim("blocked_of_synchronous", blocked["ours"], 0.1, blocked["sync"]),
            Claim("blocked_of_dcp_async", blocked["ours"], 1.0, blocked["dcp"]),
            Claim(
                "stall_of_step_time",
                blocked["ours"] / (PARALLEL.checkpoint_every * slower["step"][0]),
                0.01,
            ),
            Claim("bytes_of_dcp", megabytes["ours"], 1.01, megabytes["dcp"]),
            Claim("load_of_dcp", slower["load ours"][0], 1.0, slower["load dcp"][0]),
        ],
    )


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else main()
