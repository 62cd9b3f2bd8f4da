"""The config of a run: one file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from bloomery.config.base import Config, execution, is_execution
from bloomery.config.corpus import CorpusConfig
from bloomery.config.model import HOLDS
from bloomery.config.parallel import ParallelConfig, check_mesh, check_retention
from bloomery.config.release import EvaluateConfig, ReleaseConfig
from bloomery.config.training import TrainConfig
from bloomery.errors import BloomeryError

Section = TypeVar("Section", bound=BaseModel)


class SparkConfig(Config):
    """Which Spark engine runs the data stages."""

    remote: str | None = execution(
        None,
        pattern=r"^sc://",
        description="Spark Connect server, sc://host:port; none is the engine of `bloomery up`",
    )
    partitions: int = execution(4, ge=1, description="partitions of a shuffle")


class Execution(Config):
    """Where and how a run's stages run: bears no identity."""

    spark: SparkConfig = execution(SparkConfig(), description="Spark engine")
    parallelism: ParallelConfig = execution(ParallelConfig(), description="how training is spread")


class RunConfig(Config):
    """A run from corpus to release."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="name of the run and of the model it releases"
    )
    corpus: CorpusConfig = Field(description="from sources to shards")
    train: TrainConfig = Field(TrainConfig(), description="model and optimisation")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="what a checkpoint is measured on")
    release: ReleaseConfig = Field(ReleaseConfig(), description="when a model is released")
    execution: Execution = execution(Execution(), description="where and how stages run")

    @model_validator(mode="after")
    def _names_its_sources(self) -> Self:
        known = {source.name for source in self.corpus.snapshot.sources}
        named = {
            "corpus.mixture.sources": [source.name for source in self.corpus.mixture.sources],
            "train.schedule.mixture": [name for e in self.train.schedule.mixture for name in e.weights],
        }
        for field, names in named.items():
            if unknown := sorted(set(names) - known):
                raise ValueError(
                    f"{field} names {', '.join(unknown)}; corpus.snapshot.sources are "
                    f"{', '.join(sorted(known))}"
                )
        return self

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        export = self.release.export
        if export and self.train.model.hf_class is None:
            raise ValueError(
                f"no class of transformers holds train.model, so no release could be exported: {HOLDS}; or "
                "release.export: none, and nothing is released"
            )
        for name, weights in (
            ("evaluate", self.evaluate.weights),
            ("release.export", export and export.weights),
        ):
            if weights == "average" and self.train.ema is None:
                raise ValueError(f"{name}.weights: average, but train.ema is none: no average is kept")
        if export and export.weights != self.evaluate.weights:
            raise ValueError(
                f"release.export.weights: {export.weights}, but evaluate.weights: {self.evaluate.weights}: "
                "what is released must be what was measured"
            )
        if self.train.dtype == "fp8" and self.execution.parallelism.device == "cpu":
            raise ValueError("train.dtype: fp8 needs a GPU (Hopper), but execution.parallelism.device: cpu")
        check_mesh(self.train, self.execution.parallelism)
        check_retention(self.train, self.execution.parallelism)
        if self.release.auto_approve and self.name != "demo":
            raise ValueError(f"release.auto_approve is for the run named demo only, not for {self.name!r}")
        return self

    def last(self, until: str) -> str:
        """The DAG that a run asked to go up to `until` ends with."""
        return "evaluate" if until == "release" and self.release.export is None else until

    def section(self, kind: type[Section]) -> Section:
        """The one section of type `kind`, wherever it stands; a stage declares its config by type."""
        found = list(_sections(self, kind))
        if len(found) != 1:
            raise TypeError(f"a run's config has {len(found)} sections of type {kind.__name__}, expected 1")
        return found[0]


def _sections(config: BaseModel, kind: type[Section]) -> list[Section]:
    if isinstance(config, kind):
        return [config]
    children = (getattr(config, name) for name in type(config).model_fields)
    return [found for child in children if isinstance(child, BaseModel) for found in _sections(child, kind)]


class ConfigError(BloomeryError):
    """A config that names what is wrong with it: the field, the value, and what is allowed."""


def load(path: str | Path) -> RunConfig:
    """Reads a run's config.

    Raises:
        ConfigError: unreadable file, broken YAML, unknown key or value out of range.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}", "name a YAML file, as configs/demo.yaml"
        ) from error
    return parse(text, str(path))


def parse(text: str, name: str = "config") -> RunConfig:
    """A run's config from YAML (or JSON) text; `name` stands for it in errors."""
    try:
        raw = UniqueKeys(text).get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {error}", "mend the file at the line named above") from error
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{name}: holds {type(raw).__name__}, expected a mapping", "start from configs/demo.yaml"
        )
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        lines = [in_words(item, RunConfig) for item in error.errors(include_url=False)]
        raise ConfigError(
            f"{name}: {len(lines)} wrong field(s):\n  " + "\n  ".join(lines),
            "`bloomery config configs/demo.yaml` lists every field with its meaning",
        ) from error


class UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, of which YAML's usual reading drops all but the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, each key once."""
        known: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in known and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} again", key_node.start_mark)
            known.add(key)
        return super().construct_mapping(node, deep)


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
"""What YAML has to hold, by the first word of pydantic's type of error."""
_CONTAINERS: dict[type, str] = {dict: "a mapping", list: "a list"}


def in_words(item: Any, root: type[BaseModel]) -> str:
    """An error of pydantic's in the words of YAML: the field of `root`, what it must be, what was found."""
    where = ".".join(str(part) for part in item["loc"])
    kind, _, fault = item["type"].partition("_")
    if item["type"] == "extra_forbidden":
        allowed = sorted(_fields_at(root, item["loc"][:-1]))
        return f"{where}: unknown key; allowed here: {', '.join(allowed)}"
    if item["type"] == "missing":
        return f"{where}: missing"
    message = re.sub(
        "^(Input|String|Tuple|Dictionary) should", "must", item["msg"].removeprefix("Value error, ")
    )
    message = message.replace(" after validation", "")
    if fault in {"type", "parsing", "from_float"} and kind in _EXPECTED:
        message = f"must be {_EXPECTED[kind]}"
    value = item["input"]
    found = _CONTAINERS.get(type(value), json.dumps(value) if isinstance(value, bool) else repr(value))
    if item["type"] == "value_error" and type(value) in _CONTAINERS:  # of fields that the message names
        return f"{where}: {message}" if where else message
    return f"{where}: {message} (found {found})"


def _fields_at(root: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    kind: Any = root
    for part in location:
        if isinstance(part, str):
            kind = kind.model_fields[part].annotation
        kind = next((arg for arg in getattr(kind, "__args__", ()) if isinstance(arg, type)), kind)
    return list(kind.model_fields)


class Knob(Config):
    """One leaf of a resolved config, as `bloomery config` shows it."""

    path: str
    value: Any
    meaning: str
    identity: bool


def knobs(config: BaseModel, prefix: str = "", identity: bool = True) -> list[Knob]:
    """Every leaf of a config with its value, meaning, and whether it bears identity."""
    found: list[Knob] = []
    for name, field in type(config).model_fields.items():
        value, bears = getattr(config, name), identity and not is_execution(type(config), name)
        path = f"{prefix}{name}"
        items = [(path, value)]
        if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        for where, item in items:
            if isinstance(item, BaseModel):
                found += knobs(item, f"{where}.", bears)
            else:
                found.append(Knob(path=where, value=item, meaning=field.description or "", identity=bears))
    return found
