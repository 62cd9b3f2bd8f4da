"""A small dataset of several sources, opened as a run opens it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bloomery.config.corpus import MixtureConfig, MixtureSource
from bloomery.config.training import ModelConfig, TrainConfig
from bloomery.shards.dataset import Dataset
from bloomery.shards.overlay import Overlay
from bloomery.shards.reader import Fetch, InPlace
from bloomery.shards.write import write_dataset
from spark_jobs.mixture import plan
from tests.shards.data import POLICY, documents
from training.data import Data, Plan, open_data

SMALL = ModelConfig(layers=1, width=8, heads=1, kv_heads=1, ffn_width=8)


def write(folder: Path, sizes: Mapping[str, int] | None = None, target_bytes: int = 2048) -> Dataset:
    """A dataset of so many documents a source."""
    sizes = sizes or {"books": 40, "code": 90, "web": 200}
    held = {name: documents(count, seed) for seed, (name, count) in enumerate(sizes.items())}
    digest = write_dataset(
        folder, {"train": held, "held_out": {"web": documents(20, 99)}}, POLICY, target_bytes=target_bytes
    )
    return Dataset.open(folder, digest)


def planned(dataset: Dataset, weights: Mapping[str, float] | None = None, **about: float) -> Plan:
    """The mixture's plan, as its stage makes it."""
    sources = tuple(MixtureSource(name=name, weight=weight) for name, weight in (weights or {}).items())
    config = MixtureConfig.model_validate({"sources": sources, **about})
    held = {name: totals.tokens for name, totals in dataset.manifest.streams["train"].items()}
    return {name: share._asdict() for name, share in plan(config, held).items()}


def opened(
    dataset: Dataset,
    train: TrainConfig,
    weights: Mapping[str, float] | None = None,
    overlay: Overlay = Overlay(),  # noqa: B008  frozen
    fetch: Fetch = InPlace(),  # noqa: B008
    tables: Path | None = None,
    **about: float,
) -> Data:
    """What a run reads."""
    tables = tables or dataset.folder.with_name(f"{dataset.folder.name}-tables")
    mixed = planned(dataset, weights, **({"max_epochs": 1000.0} | about))
    return open_data(dataset, train, mixed, POLICY.tokenizer, tables, overlay, fetch)


def config(**changes: object) -> TrainConfig:
    """A run's config."""
    small = {"model": SMALL, "sequence_length": 16, "global_batch": 8, "steps": 40, "warmup_steps": 0}
    return TrainConfig.model_validate(small | changes)


def tokens_of(dataset: Dataset, source: str) -> np.ndarray:
    """All training tokens of a source, read plainly."""
    stream = dataset.stream("train", source)
    files = [stream.folder / f"{stream.table[number].name}.bin" for number in range(len(stream.table))]
    return np.concatenate([np.fromfile(path, stream.dtype) for path in files])
