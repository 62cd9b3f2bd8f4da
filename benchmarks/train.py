"""What DeepSpeed's engine costs: CPU-seconds of our step against a bare torch loop of the same model.

    ours    training.engine on one process: ZeRO-1, clipping, AdamW in flat partitions
    torch   the same model, rows, loss, clipping and AdamW's groups, in thirty lines

Both stand in one process and take steps by turns; the CPU time of each step is the process's, user and system,
and the ratio is that of the medians. `make bench-train`
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.claims import Claim, report  # noqa: E402
from bloomery.config.model import ModelConfig  # noqa: E402
from bloomery.config.training import ParallelConfig, TrainConfig  # noqa: E402
from training.loop import optimizer  # noqa: E402
from training.model import Decoder, token_losses  # noqa: E402
from training.optim import optimizer  # noqa: E402
from training.parallel import deepspeed_config, start_engine  # noqa: E402

VOCAB, LENGTH, ROWS, WIDTH = 16_384, 1024, 8, 2
SHAPE = ModelConfig(layers=13, width=768, heads=12, kv_heads=12, ffn_width=2048)
TRAIN = TrainConfig(model=SHAPE, sequence_length=LENGTH, global_batch=ROWS, learning_rate=1e-4)
PARALLEL = ParallelConfig(ranks=1, micro_batch=WIDTH, device="cpu")
PAIRS = int(os.environ.get("PAIRS", "5"))


def batch(step: int) -> Tensor:
    """Random rows: [ROWS, LENGTH + 1]."""
    return torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(step))


def cpu_seconds() -> float:
    """Of this process and all its threads."""
    times = os.times()
    return times.user + times.system


class Bare:
    """The loop that anybody would write."""

    def __init__(self) -> None:
        self.model = Decoder(SHAPE, VOCAB)
        self.model.initialise(1)
        self.optimizer = optimizer(self.model.named_parameters(), TRAIN)

    def step(self, rows: Tensor) -> float:
        """One step; its loss."""
        total = 0.0
        for part in rows.split(WIDTH):
            loss = token_losses(self.model(part[:, :-1]), part[:, 1:]).sum()
            total += loss.item()
            (loss / (ROWS * LENGTH)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), TRAIN.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total / (ROWS * LENGTH)


class Ours:
    """DeepSpeed's engine as the loop drives it."""

    def __init__(self) -> None:
        import deepspeed

        model = Decoder(SHAPE, VOCAB)
        model.initialise(1)
        config = deepspeed_config(TRAIN, PARALLEL)
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer(model.named_parameters(), TRAIN), config=config)[0]

    def step(self, rows: Tensor) -> float:
        """One step; its loss."""
        total, parts = 0.0, rows.split(WIDTH)
        for number, part in enumerate(parts):
            self.engine.set_gradient_accumulation_boundary(number + 1 == len(parts))
            loss = token_losses(self.engine(part[:, :-1]), part[:, 1:]).sum()
            total += loss.item()
            self.engine.backward(loss / (ROWS * LENGTH))
        self.engine.step()
        return total / (ROWS * LENGTH)


def main() -> None:
    """Steps by turns, one of each uncounted."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    with tempfile.TemporaryDirectory() as folder:
        start_engine("cpu", f"file://{folder}/group")
        runs = {"ours": Ours(), "torch": Bare()}
        count = sum(weight.numel() for weight in runs["torch"].model.parameters())
        print(f"{count:,} parameters, {ROWS * LENGTH:,} tokens a step", flush=True)
        spent: dict[str, list[float]] = {name: [] for name in runs}
        losses: dict[str, float] = {}
        for step in range(PAIRS + 1):
            for name in runs if step % 2 else reversed(runs):
                began = cpu_seconds()
                losses[name] = runs[name].step(batch(step))
                spent[name].append(cpu_seconds() - began)
                print(f"step {step} {name}: {spent[name][-1]:.2f} CPU-s, loss {losses[name]:.6f}", flush=True)
            assert abs(losses["ours"] - losses["torch"]) < 1e-4
    ours, bare = (statistics.median(spent[name][1:]) for name in ("ours", "torch"))
    report("train", [Claim("train.cpu_seconds_a_step", ours, 1.03, bare)])


if __name__ == "__main__":
    main()
