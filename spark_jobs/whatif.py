"""What if a bound were another: how many documents would change sides, from the signals that are stored.

    bloomery what-if demo --set clean.gopher.min_words=80

Nothing is measured again and no engine is needed: columns of the table of `measure` are read and judged
under both configs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ValidationError

from bloomery.artifacts.manifest import Artifact, read_manifest
from bloomery.artifacts.run import MissingInputError, artifact
from bloomery.artifacts.store import Store
from bloomery.config.cleaning import CleanConfig
from bloomery.config.run import ConfigError, in_words
from spark_jobs.cleaning.verdicts import checks, first_broken
from spark_jobs.explain import table_files
from spark_jobs.parts import tables_of

KEPT = "kept"


class Flip(NamedTuple):
    """Documents whose fate changes from one verdict to another."""

    before: str
    """Rule that dropped them, or kept."""
    after: str
    documents: int


class WhatIf(NamedTuple):
    """How a changed config would judge."""

    kept_before: int
    kept_after: int
    flips: list[Flip]
    """Most documents first."""


def what_if(store: Store, manifests: Mapping[str, str], changes: Sequence[str]) -> WhatIf:
    """Judges what `measure` has measured under the config of `clean` and under a changed one.

    Args:
        store: where the tables stand.
        manifests: stage -> digest of its manifest.
        changes: "clean.gopher.min_words=80", as many as wanted.

    Raises:
        ConfigError: a change names no field, or a value that it does not allow.
        MissingInputError: nothing was measured and judged yet.
    """
    if not {"measure", "clean"} <= manifests.keys():
        raise MissingInputError("nothing was measured and judged yet", "run the corpus first")
    old = CleanConfig.model_validate(read_manifest(store, manifests["clean"]).spec.config)
    new = changed(old, changes)
    names = [[*(check.rule for check in checks(config)), KEPT] for config in (old, new)]
    columns = {check.column for config in (old, new) for check in checks(config)}
    fates = Counter[tuple[str, str]]()
    for table in _kept(artifact(store, manifests["measure"], "documents"), sorted(columns)):
        pairs = zip(first_broken(table, old).tolist(), first_broken(table, new).tolist(), strict=True)
        for (one, other), documents in Counter(pairs).items():
            fates[names[0][one], names[1][other]] += documents
    flips = [Flip(*fate, documents) for fate, documents in fates.most_common() if fate[0] != fate[1]]
    before, after = (
        sum(documents for fate, documents in fates.items() if fate[side] == KEPT) for side in (0, 1)
    )
    return WhatIf(before, after, flips)


def changed(config: CleanConfig, changes: Sequence[str]) -> CleanConfig:
    """The config with fields set, each as "clean.family.bound=value" with the value in YAML.

    Raises:
        ConfigError: a change names no field, or a value that it does not allow.
    """
    values = config.model_dump()
    for change in changes:
        path, equals, text = change.partition("=")
        first, *steps = path.split(".")
        section: Any = values
        for step in steps[:-1]:
            section = section.get(step) if isinstance(section, dict) else None
        if first != "clean" or not equals or not steps or not isinstance(section, dict):
            raise ConfigError(f"{change!r} sets no field of clean", "write clean.gopher.min_words=80")
        section[steps[-1]] = yaml.safe_load(text)
    try:
        return CleanConfig.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        raise ConfigError(
            f"clean.{in_words(found, CleanConfig)}",
            f"fields here: {', '.join(_fields(config, found['loc'][:-1]))}",
        ) from error


def _fields(config: BaseModel, place: tuple[int | str, ...]) -> list[str]:
    for step in place:
        config = getattr(config, str(step))
    return list(type(config).model_fields)


def _kept(measured: Artifact, columns: list[str]) -> Iterator[Any]:
    """Batches of the documents that `measure` has measured."""
    from pyarrow import dataset

    with tempfile.TemporaryDirectory(prefix="bloomery-what-if-") as cache:
        for part, without in tables_of(measured):
            files = [str(path) for path in table_files(part, Path(cache))]
            if not files:
                continue
            wanted = dataset.field("status") == KEPT
            for source, path in without:
                wanted &= ~((dataset.field("source") == source) & (dataset.field("path") == path))
            yield dataset.dataset(files, format="parquet").to_table(columns=columns, filter=wanted)
