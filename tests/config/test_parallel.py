"""A mesh that cannot train a model is refused when the config is read: the reason, and a legal one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.config.model import ModelConfig, MoeConfig
from bloomery.config.parallel import ParallelConfig, check_mesh, nearest, refusals
from bloomery.config.run import ConfigError, parse
from bloomery.config.training import TrainConfig

MODEL = ModelConfig(layers=6, width=48, heads=6, kv_heads=2, ffn_width=64)
TRAIN = TrainConfig(model=MODEL, sequence_length=96)
EXPERTS = TRAIN.model_copy(
    update={"model": MODEL.model_copy(update={"moe": MoeConfig(experts=6, top_k=2, ffn_width=8)})}
)
BF16 = TRAIN.model_copy(update={"dtype": "bf16"})


@pytest.mark.parametrize(
    ("train", "mesh", "reason", "legal"),
    [
        (TRAIN, {"ranks": 4, "tensor": 3}, "ranks 4 is not a multiple of tensor 3", "tensor 2"),
        (TRAIN, {"ranks": 4, "tensor": 4}, "heads 6 is not a multiple of tensor 4", "data 2 x tensor 2"),
        (TRAIN, {"ranks": 3, "tensor": 3}, "kv_heads 2 is not a multiple of tensor 3", "ZeRO-1"),
        (TRAIN, {"ranks": 4, "pipeline": 4}, "layers 6 is not a multiple of pipeline 4", "pipeline 2"),
        (TRAIN, {"pipeline": 2, "zero_stage": 0}, "norm that leaves stages out", "pipeline 2, ZeRO-1"),
        (TRAIN, {"pipeline": 2, "zero_stage": 3}, "cannot give gradients or weights", "pipeline 2, ZeRO-1"),
        (TRAIN, {"ranks": 4, "tensor": 2, "sequence": 2}, "is not proven", "data 2 x"),
        (TRAIN, {"expert": 2}, "expert 2, but train.model.moe is none", "data 2, ZeRO-1"),
        (EXPERTS, {"ranks": 4, "expert": 4}, "experts 6 is not a multiple of expert 4", "data 4 x expert 2"),
        (EXPERTS, {"expert": 2, "zero_stage": 3}, "expert with zero_stage 3", "expert 2, ZeRO-2"),
        (EXPERTS, {"tensor": 2}, "tensor with experts", "data 2, ZeRO-1"),
        (BF16, {"zero_stage": 0}, "bf16 keeps no fp32 masters", "data 2, ZeRO-1"),
    ],
)
def test_the_reason_and_the_nearest_legal_mesh(train, mesh, reason, legal):
    with pytest.raises(ValueError, match=reason) as refused:
        check_mesh(train, ParallelConfig(**mesh))
    assert legal in str(refused.value).split("nearest legal mesh is")[1]


def test_a_ramp_of_the_length_must_be_shared_too():
    ramp = {"length": ({"until_step": 3, "value": 3},)}
    train = TrainConfig.model_validate(TRAIN.model_dump() | {"schedule": ramp})
    with pytest.raises(ValueError, match="sequences of 3 tokens are not a multiple of sequence 2"):
        check_mesh(train, ParallelConfig(ranks=2, sequence=2))


def test_the_config_names_the_field():
    text = """
name: mine
corpus: {snapshot: {sources: [{name: web, uri: "/data/*.jsonl"}]}}
train: {model: 8b}
execution: {parallelism: {ranks: 6, tensor: 3}}
"""
    with pytest.raises(
        ConfigError, match=r"execution\.parallelism: train\.model\.heads 32 is not a multiple"
    ):
        parse(text)


degrees = st.sampled_from([1, 1, 2, 3, 4])


@settings(max_examples=100, deadline=None)
@given(degrees, degrees, degrees, degrees, st.integers(0, 3), st.sampled_from([1, 2, 4, 6, 8]), st.booleans())
def test_the_nearest_mesh_is_legal_and_of_as_many_ranks(tensor, pipeline, sequence, expert, zero, ranks, moe):
    train = EXPERTS if moe else TRAIN
    mesh = ParallelConfig(
        ranks=ranks, tensor=tensor, pipeline=pipeline, sequence=sequence, expert=expert, zero_stage=zero
    )
    other = nearest(train, mesh)
    assert other.ranks == ranks and not refusals(train, other)
    if not refusals(train, mesh):
        assert other == mesh


def test_the_best_checkpoints_are_kept_only_where_all_are_measured():
    text = """
name: mine
corpus: {{snapshot: {{sources: [{{name: web, uri: "/data/*.jsonl.gz"}}]}}}}
train: {{held_out_every: 30}}
execution: {{parallelism: {{keep_best: 2, checkpoint_every: {every}}}}}
"""
    parse(text.format(every=60))
    with pytest.raises(ConfigError, match="checkpoint_every 50 is not a multiple of"):
        parse(text.format(every=50))
