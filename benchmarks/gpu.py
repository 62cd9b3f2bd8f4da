"""How much of a GPU training uses: MFU of the presets 125m and 1b in bf16, on the GPUs of this machine.

    engine of training/, one rank a GPU, ZeRO-1, layers compiled, random tokens -> tokens/s, TFLOP/s, MFU

MFU is of the FLOPs that the model needs, with attention as if it were not causal (arXiv:2204.02311, appendix
B) and as it is. Without a GPU it says so, and fails nothing. `make bench-gpu`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

from bloomery.config.model import PRESETS  # noqa: E402
from bloomery.config.parallel import ParallelConfig  # noqa: E402
from bloomery.config.training import TrainConfig  # noqa: E402

ROWS = {"125m": (16, 2048), "1b": (4, 4096)}
"""Sequences a micro-batch, and their tokens."""
WARM, STEPS, PIECES = 4, 12, 4
"""Steps that are not timed, steps that are, and micro-batches of a step."""


def rank(name: str, folder: str) -> None:
    """One rank: rank 0 prints seconds a step as JSON."""
    from training.accounting import Meter
    from training.engine import Engine, Rows
    from training.parallel import start_engine

    number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    start_engine("cuda", f"file://{folder}/group")
    preset, (rows, length) = PRESETS[name], ROWS[name]
    train = TrainConfig(
        model=preset.model, sequence_length=length, global_batch=rows * PIECES * ranks, dtype="bf16"
    )
    parallel = ParallelConfig(ranks=ranks, micro_batch=rows, device="cuda", compile=True)
    engine = Engine.start(train, parallel, preset.vocab_size)
    random = torch.Generator().manual_seed(number)
    tokens = torch.randint(preset.vocab_size, (PIECES, rows, length + 1), generator=random)
    positions = torch.arange(length).expand(rows, -1)
    batch = [Rows(part[:, :-1], positions, part[:, 1:]) for part in tokens]
    targets = rows * PIECES * ranks * length
    for step in range(WARM + STEPS):
        if step == WARM:
            torch.cuda.synchronize()
            began = time.perf_counter()
        engine.forward_backward(batch, targets)
        engine.step(1e-4, sum(engine.square_sums().values()) ** 0.5)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / STEPS
    if number == 0:
        device = torch.cuda.get_device_name()
        meter = Meter.of(train, preset.vocab_size, ranks, device, targets, time.time(), 0.0)
        found = meter.step(targets, targets, seconds)
        wanted = ("tokens_per_second", "tflops_per_rank", "mfu", "mfu_causal")  # no MFU of an unknown GPU
        about = {name: found[name] for name in wanted if name in found}
        print(json.dumps(about | {"peak_gb": torch.cuda.max_memory_allocated() / 1e9}))


def measured(name: str, ranks: int) -> dict[str, float]:
    """What rank 0 of a preset's ranks found."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", __file__, name, folder]
        processes = [
            subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "RANK": str(number),
                    "LOCAL_RANK": str(number),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "0",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(ranks)
        ]
        said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{name}: a rank failed, see above")
    found: dict[str, float] = json.loads(said[0].strip().splitlines()[-1])
    return found


def main() -> None:
    """Both presets on all GPUs of this machine."""
    ranks = torch.cuda.device_count()
    if not ranks:
        print("no GPU on this machine: nothing is measured")
        return
    for name in ROWS:
        found = measured(name, ranks)
        print(name, json.dumps({key: round(value, 4) for key, value in found.items()}))


if __name__ == "__main__":
    rank(*sys.argv[1:]) if len(sys.argv) > 1 else main()
