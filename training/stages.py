"""The stages of the compute plane: declarations only."""

from bloomery.artifacts.stage import Stage
from bloomery.config.training import TrainConfig

TRAIN = Stage(
    name="train",
    version=3,
    config=TrainConfig,
    inputs={"shards": "shard.shards", "tokenizer": "tokenizer.tokenizer", "mixture": "mixture.plan"},
    libraries=("deepspeed", "torch"),
    body="training.launch:train",
    gates=("shard_gate",),
)
"""Outputs: checkpoint (the last step's folder) and history (JSON: training.layout.History)."""
