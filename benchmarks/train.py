"""What the engine costs: CPU-seconds of our step against a bare torch loop of the same model and optimizer.

    ours     training.engine, one process: ZeRO-1, norms by weight, clipping, can refuse a step
    torch    the same model, rows, loss, clipping and optimizer in twenty lines

Both stand in one process and take steps by turns. A step's CPU-seconds are those of the process, user and
system, of all its threads. Who goes first in a step pays some percent more, so each is first as often as the
other, and the means are compared. Losses are checked to be equal. `make bench-train`
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from training.launch import ALLOCATOR  # noqa: E402

if not ALLOCATOR.items() <= os.environ.items():  # read when a process starts: as ranks have it
    os.execve(sys.executable, [sys.executable, "-P", *sys.argv], {**os.environ, **ALLOCATOR})  # noqa: S606

import torch  # noqa: E402

from benchmarks.claims import Claim, report  # noqa: E402
from bloomery.config.model import ModelConfig  # noqa: E402
from bloomery.config.parallel import ParallelConfig  # noqa: E402
from bloomery.config.training import TrainConfig  # noqa: E402
from training.engine import Engine, Rows  # noqa: E402
from training.model import Decoder  # noqa: E402
from training.optim import optimizer  # noqa: E402
from training.parallel import start_engine  # noqa: E402

VOCAB, LENGTH, ROWS, WIDTH, STEPS = 16_384, 1024, 8, 2, 6
SHAPE = ModelConfig(layers=13, width=768, heads=12, kv_heads=12, ffn_width=2048)
TRAIN = TrainConfig(model=SHAPE, sequence_length=LENGTH, global_batch=ROWS)
PARALLEL = ParallelConfig(ranks=1, micro_batch=WIDTH, device="cpu")
RATE = 1e-4
TARGETS = ROWS * LENGTH


def batch(step: int) -> list[Rows]:
    """Micro-batches of random tokens."""
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=random)
    positions = torch.arange(LENGTH).expand(WIDTH, -1)
    return [Rows(part[:, :-1], positions, part[:, 1:]) for part in tokens.split(WIDTH)]


def bare() -> Callable[[list[Rows]], float]:
    """The step that anybody would write."""
    model = Decoder(SHAPE, VOCAB)
    model.initialise(TRAIN.seed)
    adam = optimizer(model.places(), TRAIN)
    for group in adam.param_groups:
        group["lr"] = RATE

    def step(rows: list[Rows]) -> float:
        total = 0.0
        for inputs, positions, targets in rows:
            losses = model.losses(model(inputs, positions), targets)
            total += losses.sum().item()
            (losses.sum() / TARGETS).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN.clip)
        adam.step()
        adam.zero_grad()
        return total / TARGETS

    return step


def ours() -> Callable[[list[Rows]], float]:
    """The step as the loop takes it."""
    engine = Engine.start(TRAIN, PARALLEL, VOCAB)

    def step(rows: list[Rows]) -> float:
        total = engine.forward_backward(rows, TARGETS)
        engine.step(RATE, sum(engine.square_sums().values()) ** 0.5)
        return total / TARGETS

    return step


def cpu_seconds() -> float:
    """Of this process and all its threads."""
    times = os.times()
    return times.user + times.system


def main() -> None:
    """Steps by turns; the first two of each are not counted: they make state, and the heap grows."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(PARALLEL.threads)
    with tempfile.TemporaryDirectory() as folder:
        start_engine("cpu", f"file://{folder}/group")
        steps = {"ours": ours(), "torch": bare()}
        spent: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(2 + STEPS):
            rows, losses = batch(number), {}
            for name in steps if number % 2 else reversed(steps):
                began = cpu_seconds()
                losses[name] = steps[name](rows)
                spent[name].append(cpu_seconds() - began)
                print(
                    f"step {number} {name}: {spent[name][-1]:.2f} CPU-s, loss {losses[name]:.6f}", flush=True
                )
            assert abs(losses["ours"] - losses["torch"]) < 1e-5
    mine, peer = (statistics.mean(spent[name][2:]) for name in ("ours", "torch"))
    report("train", [Claim("train.cpu_seconds_a_step", mine, 1.03, peer)])


if __name__ == "__main__":
    main()
