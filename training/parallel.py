"""How training is spread: the DeepSpeed config, made from ours, and the process group.

DeepSpeed accepts unknown keys in silence, so nobody writes its JSON by hand.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from bloomery.config.training import ParallelConfig, TrainConfig


def deepspeed_config(train: TrainConfig, parallel: ParallelConfig) -> dict[str, Any]:
    """The DeepSpeed JSON: ZeRO-1, fp32 or bf16 with fp32 accumulation, clipping by the global norm."""
    config: dict[str, Any] = {
        # the loop says where a step ends, and divides by its targets: steps differ in both
        "train_batch_size": parallel.micro_batch * parallel.ranks,
        "train_micro_batch_size_per_gpu": parallel.micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": train.clip,
        "zero_optimization": {"stage": parallel.zero_stage},
        "steps_per_print": 1 << 62,
        "wall_clock_breakdown": False,
    }
    if train.dtype == "bf16":  # upstream #1800: without it gradients accumulate in bf16
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return config


def start_engine(device: str, meet: str = "env://") -> None:
    """Joins the process group of RANK and WORLD_SIZE: gloo on "cpu", nccl on "cuda".

    Args:
        device: "cpu" or "cuda".
        meet: where the ranks find each other, as torch's `init_method`: file:///path on one machine, since
            a TCP store listens on every interface.
    """
    os.environ["DS_ACCELERATOR"] = device
    import deepspeed
    import torch

    # Built just in time it needs a compiler, and a rank killed meanwhile leaves a lock that hangs later runs.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel(logging.WARNING)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(
        "nccl" if device == "cuda" else "gloo",
        verbose=False,
        init_method=meet,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def learning_rate(step: int, steps: int, train: TrainConfig) -> float:
    """Learning rate of step `step` (from 0) of `steps`: linear warm-up, then a cosine down to the minimum.

    A pure function of the step, so a resume has no scheduler to restore.
    """
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    done = (step - train.warmup_steps) / max(1, steps - train.warmup_steps)
    return (
        train.min_learning_rate
        + (train.learning_rate - train.min_learning_rate) * (1 + math.cos(math.pi * done)) / 2
    )
