"""A process that runs stage `train` as Airflow's task does: `python -m tests.training.task STORE STEPS`."""

from __future__ import annotations

import sys
from pathlib import Path

from bloomery.config.model import ModelConfig
from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import TrainConfig
from bloomery.errors import BloomeryError
from tests.training.world import make_world

CONFIG = TrainConfig(
    model=ModelConfig(layers=3, width=96, heads=4, kv_heads=2, ffn_width=250),
    sequence_length=96,
    global_batch=8,
    steps=60,
    warmup_steps=4,
    held_out_every=25,
    held_out_sequences=4,
)
SPREAD = ParallelConfig(ranks=2, micro_batch=4, checkpoint_every=10, device="cpu")


def main() -> int:
    """Prints the lines of progress, then the manifest's digest or the error."""
    world = make_world(Path(sys.argv[1]))
    try:
        outcome = world.train(CONFIG, SPREAD, log=lambda line: print(line, flush=True))
    except BloomeryError as error:
        print(f"{type(error).__name__} retry={error.retry}: {error}", flush=True)
        return 1
    print(f"manifest {outcome.digest} hit={outcome.hit}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
