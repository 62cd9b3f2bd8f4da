"""How training is spread: the DeepSpeed config, made from ours, and the process group.

DeepSpeed accepts unknown keys in silence, so nobody writes its JSON by hand.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import TrainConfig


def deepspeed_config(train: TrainConfig, parallel: ParallelConfig) -> dict[str, Any]:
    """The DeepSpeed JSON: a ZeRO stage, fp32 or bf16 with fp32 accumulation.

    Clipping is ours (training/gradients.py), so DeepSpeed's is off, and its norm where that can be.
    """
    zero: dict[str, Any] = {"stage": parallel.zero_stage}
    own_masters = train.dtype != "fp32" and parallel.zero_stage == 1
    if parallel.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif parallel.zero_stage in (1, 2) and not own_masters:
        zero["compute_grad_norm"] = False
    config: dict[str, Any] = {
        # the loop says where a step ends, and divides by its targets: steps differ in both
        "train_batch_size": parallel.micro_batch * parallel.data,
        "train_micro_batch_size_per_gpu": parallel.micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,  # ours (training/optim.py)
        # what stages hand on is shared in time already, and differs on the ranks of the tensor axis
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        "steps_per_print": 1 << 62,
        "wall_clock_breakdown": False,
    }
    if train.dtype != "fp32":  # upstream #1800: without it gradients accumulate in bf16
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


def learning_rate(span: tuple[int, int], warmup: int, whole: int, train: TrainConfig) -> float:
    """Learning rate of a step: linear warm-up, then down to the minimum as far as the data is read.

    A pure function of what was read, so a resume has no scheduler to restore, and ramps of the batch do not
    bend it.

    Args:
        span: first sample of the step, and how many it has.
        warmup: samples of the warm-up.
        whole: samples of the run.
        train: peak, minimum, and the way between: cosine (arXiv:1608.03983), linear, or constant and then
            linear over the last `decay_share` (WSD, arXiv:2404.06395).
    """
    first, count = span
    if first < warmup:
        return train.learning_rate * min(1.0, (first + count) / warmup)
    done = (first - warmup) / max(1, whole - warmup)
    left = {
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "linear": 1 - done,
        "wsd": min(1.0, (1 - done) / train.decay_share),
    }[train.decay]
    return train.min_learning_rate + (train.learning_rate - train.min_learning_rate) * left
