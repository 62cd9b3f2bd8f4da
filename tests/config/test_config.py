"""A config names what is wrong with it, and no execution-only field bears identity."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bloomery.airflow.catalogue import DATA_STAGES, STAGES
from bloomery.config.base import identity
from bloomery.config.run import ConfigError, RunConfig, knobs, load, parse
from bloomery.config.training import TrainConfig
from tests.deployment import ROOT

SMALL = 'name: x\ncorpus: {snapshot: {sources: [{name: a, uri: "/data"}]}}\n'


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_of_the_project_is_valid(path):
    assert load(path).name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", ["not YAML"]),
        ("- a", ["holds list", "expected a mapping"]),
        (SMALL + "train: {steps: 9}\ntrain: {seed: 2}\n", ["not YAML", "key 'train' again", "line 4"]),
        (SMALL + "train:\n  steps: 9\n  seed: 1\n  steps: 10\n", ["key 'steps' again", "line 6"]),
        (SMALL + "trian: {}\n", ["trian: unknown key", "allowed here:", "train"]),
        (
            SMALL + "train: {model: {width: 100, heads: 3}}",
            ["train.model", "width 100 is not a multiple of heads 3"],
        ),
        (
            SMALL + "evaluate: {weights: average}",
            ["evaluate.weights: average, but train.ema is none"],
        ),
        (
            SMALL + "train: {ema: 0.99}\nrelease: {export: {weights: average}}",
            ["release.export.weights: average, but evaluate.weights: trained"],
        ),
        (
            SMALL + "train: {optimizer: muon, model: {scaling: mup}}",
            ["mup has learning rates for AdamW, not for optimizer muon"],
        ),
        (
            SMALL + "train: {optimizer: muon}\nexecution: {parallelism: {ranks: 2, zero_stage: 3}}",
            ["optimizer muon needs whole matrices", "nearest legal mesh is data 2, ZeRO-2"],
        ),
        (
            SMALL + "train: {optimizer: muon}\nexecution: {parallelism: {ranks: 2, offload_optimizer: true}}",
            ["without tensor, zero_stage 3 and offload_optimizer", "nearest legal mesh is data 2, ZeRO-1"],
        ),
        (
            SMALL + "train: {dtype: fp8}\nexecution: {parallelism: {device: cpu}}",
            ["train.dtype: fp8 needs a GPU (Hopper)", "device: cpu"],
        ),
        (
            SMALL.replace("]}}", "]}, mixture: {sources: [{name: webb, weight: 1}]}}"),
            ["corpus.mixture.sources names webb; corpus.snapshot.sources are a"],
        ),
        (
            SMALL + "train: {schedule: {mixture: [{from_step: 9, weights: {a: 1, webb: 1}}]}}",
            ["train.schedule.mixture names webb"],
        ),
        (SMALL + "train: {steps: many}", ["train.steps: must be a whole number (found 'many')"]),
        (SMALL + "train: {steps: 2.5}", ["train.steps: must be a whole number (found 2.5)"]),
        (SMALL + "train: {steps: true}", ["train.steps: must be a whole number (found true)"]),
        (SMALL + "train: {learning_rate: yes}", ["train.learning_rate: must be a number (found true)"]),
        (SMALL + "train: {clip: [1]}", ["train.clip: must be a number (found a list)"]),
        (SMALL + "train: {deterministic: perhaps}", ["must be true or false (found 'perhaps')"]),
        (SMALL + "train: {betas: 0.9}", ["train.betas: must be a list (found 0.9)"]),
        (SMALL + "train: 3", ["train: must be a mapping (found 3)"]),
        (SMALL + "train: {optimizer: sgd}", ["must be 'adamw' or 'muon' (found 'sgd')"]),
        (SMALL + "train: {init_from: {checkpoint: abc}}", ["train.init_from.checkpoint", "found 'abc'"]),
        (SMALL + "execution: {parallelism: {profile: [5, 2]}}", ["parallelism.profile", "[5, 2]"]),
        (SMALL + "train: {steps: 0}", ["train.steps", "greater than or equal to 1", "found 0"]),
        (SMALL + "train: {learning_rate: .nan}", ["train.learning_rate", "finite number"]),
        (SMALL + "train: {warmup_steps: 500, steps: 400}", ["warmup_steps 500 must be less than steps 400"]),
        (
            SMALL + "train: {schedule: {length: [{until_step: 9, value: 48}]}}",
            ["schedule.length 48 does not divide sequence_length 256"],
        ),
        (
            SMALL + "train: {schedule: {batch: [{until_step: 9, value: 2}, {until_step: 9, value: 4}]}}",
            ["steps of schedule.batch must rise"],
        ),
        (
            SMALL + "train: {schedule: {mixture: [{from_step: 9, weights: {a: 0}}]}}",
            ["train.schedule", "each at least 0, one of them above"],
        ),
        (SMALL + "release: {auto_approve: true}", ["auto_approve is for the run named demo only"]),
        (
            SMALL + "execution: {spark: {remote: 'spark://x'}}",
            ["execution.spark.remote", "found 'spark://x'"],
        ),
        ("name: x\ncorpus: {snapshot: {sources: []}}", ["corpus.snapshot.sources", "at least 1 item"]),
        ("name: x\n", ["corpus: missing"]),
        ("name: 'A B'\ncorpus: {}", ["name:", "found 'A B'"]),
        (
            SMALL.replace("/data", "ftp://host/x"),
            ["scheme 'ftp' is not known", "allowed: a path, file://, s3://"],
        ),
        (SMALL.replace("/data", "builtin://ruby"), ["'builtin://ruby' is not a built-in source"]),
        (
            'name: x\ncorpus: {snapshot: {sources: [{name: a, uri: "/a"}, {name: a, uri: "/b"}]}}\n',
            ["source names must differ; used twice: a"],
        ),
        (
            SMALL.replace("uri:", "url:"),
            ["corpus.snapshot.sources.0.uri: missing", "sources.0.url: unknown key"],
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_value_and_what_is_allowed(text, words):
    with pytest.raises(ConfigError) as error:
        parse(text, "mine.yaml")
    for word in ["mine.yaml", *words]:
        assert word in str(error.value)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing.yaml: cannot be read"):
        load(tmp_path / "nothing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match=r"latin.yaml: cannot be read"):
        load(tmp_path / "latin.yaml")


def test_every_field_has_a_meaning_and_every_stage_a_section():
    config = parse(SMALL)
    assert [knob.path for knob in knobs(config) if not knob.meaning] == []
    for stage in STAGES.values():
        assert isinstance(config.section(stage.config), stage.config)


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        parse(SMALL).train.steps = 3


def _keys(config: RunConfig) -> dict[str, str]:
    digests = {name: dict.fromkeys(stage.inputs, "0" * 64) for name, stage in STAGES.items()}
    return {
        name: stage.spec(config.section(stage.config), digests[name]).key for name, stage in STAGES.items()
    }


BASE = parse(SMALL)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(21, 10_000),
    st.floats(1e-6, 1.0),
    st.sampled_from(["fp32", "bf16"]),
    st.integers(1, 64),
    st.integers(0, 1 << 31),
)
def test_no_field_of_train_changes_a_data_key(steps, rate, dtype, length, seed):
    train = {
        "steps": steps,
        "learning_rate": rate,
        "min_learning_rate": 0.0,
        "dtype": dtype,
        "sequence_length": 8 * length,
        "seed": seed,
    }
    changed = RunConfig.model_validate(BASE.model_dump() | {"train": BASE.train.model_dump() | train})
    before, after = _keys(BASE), _keys(changed)
    assert {name: before[name] for name in DATA_STAGES} == {name: after[name] for name in DATA_STAGES}
    assert (before["train"] == after["train"]) is (identity(BASE.train) == identity(changed.train))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(1, 64),
    st.sampled_from(["/elsewhere", "s3://b/c", "file:///x"]),
)
def test_no_execution_only_field_changes_any_key(ranks, every, partitions, uri):
    changed = BASE.model_dump()
    changed["execution"]["parallelism"] |= {"ranks": ranks, "checkpoint_every": every, "threads": every}
    changed["execution"]["spark"] |= {"partitions": partitions, "remote": "sc://other:1"}
    changed["corpus"]["snapshot"]["sources"][0]["uri"] = uri
    assert _keys(RunConfig.model_validate(changed)) == _keys(BASE)


def test_every_config_in_the_documentation_is_read():
    root = ROOT
    blocks = [
        (path.name, block)
        for path in (root / "README.md", *(root / "docs").glob("*.md"))
        for block in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert {name for name, _ in blocks} >= {"README.md", "data.md"}
    for name, block in blocks:
        parse(block, name)


def test_what_no_class_holds_is_trained_where_nothing_is_released():
    moe = "{experts: 4, top_k: 2, ffn_width: 64, renormalise: false}"
    text = SMALL + f"train: {{model: {{moe: {moe}}}}}\n"
    with pytest.raises(ConfigError, match=r"no class of transformers .* release.export: none"):
        parse(text)
    for release in ("none", "null"):
        config = parse(text + f"release: {{export: {release}}}")
        assert config.release.export is None
        assert [config.last(until) for until in ("pretrain", "evaluate", "release")] == [
            "pretrain",
            "evaluate",
            "evaluate",
        ]
    assert parse(SMALL).last("release") == "release"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("betas", (0.9, 1.0), "betas.1"),
        ("min_learning_rate", 0.1, "min_learning_rate 0.1 is above learning_rate 0.002"),
    ],
)
def test_a_rate_that_no_optimizer_takes_is_refused(field, value, said):
    with pytest.raises(ValidationError, match=said):
        TrainConfig.model_validate({field: value})
