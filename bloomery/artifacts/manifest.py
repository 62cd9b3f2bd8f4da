"""Manifest and action: what a stage made, and where the winner left it.

A manifest is immutable and holds nothing of clock, host or place. The action is the commit: it names the
manifest and the places.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from bloomery.artifacts.canonical import canonical, digest
from bloomery.artifacts.store import Store
from bloomery.config.base import Config

SCHEMA = 1


class Output(Config):
    """What an output is, wherever it stands."""

    digest: str
    rows: int | None = None
    documents: int | None = None
    tokens: int | None = None
    bytes: int | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    """Small facts that follow from the content, as counts per drop reason; never a clock, a host or a
    path."""


class Spec(Config):
    """A stage's identity: equal specs mean equal outputs."""

    layout: int = SCHEMA
    stage: str
    version: int
    config: dict[str, Any]
    inputs: dict[str, str]
    libraries: dict[str, str]

    @property
    def key(self) -> str:
        """sha256 of the canonical JSON of the spec."""
        return digest(self.model_dump())


class Manifest(Config):
    """The spec of a stage and what it made."""

    spec: Spec
    outputs: dict[str, Output]

    def to_bytes(self) -> bytes:
        """Canonical JSON; its sha256 is the manifest's digest."""
        return canonical(self.model_dump())

    @property
    def digest(self) -> str:
        """The manifest's digest: its address under manifests/."""
        return digest(self.model_dump())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote."""
        return cls.model_validate_json(data)


class Action(Config):
    """The commit point of a key: the manifest, the places of its outputs, and what made its inputs."""

    manifest: str
    places: dict[str, str]
    needs: tuple[str, ...] = ()
    """Keys of the stages whose outputs these outputs refer to, as a collection to its parts: the commit
    counts only as long as theirs do."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Input name -> digest of the manifest that made it. For lineage only: inputs bear identity by
    content."""
    attempt: str
    git: str = ""
    began: float = 0.0
    ended: float = 0.0

    def to_bytes(self) -> bytes:
        """JSON of the action."""
        return json.dumps(self.model_dump(), sort_keys=True).encode()


@dataclass(frozen=True)
class Artifact:
    """An output and where it stands: what a stage's body takes and gives."""

    output: Output
    place: str
    store: Store
    needs: tuple[str, ...] = ()
    """Keys of the stages whose outputs it refers to."""

    def read(self) -> bytes:
        """The bytes of a one-file output."""
        return self.store.read(self.place)

    def local(self, cache: Path) -> Path:
        """A local path of the file or folder: the store's own, or a copy below `cache`."""
        return self.store.fetch(self.place, cache)

    @property
    def spark_uri(self) -> str:
        """The URI by which Spark reads it."""
        return self.store.spark_uri(self.place)


def read_manifest(store: Store, manifest: str) -> Manifest:
    """The manifest with this digest."""
    return Manifest.from_bytes(store.read(f"manifests/{manifest}"))


def read_action(store: Store, key: str) -> Action | None:
    """The commit of this key, or None."""
    found = store.get(f"actions/{key}")
    return Action.model_validate_json(found.data) if found else None
