"""The one idea: a stage is a function from inputs and a config to outputs, declared once.

A declaration imports no engine: its body is named as text and loaded only when there is work to do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.manifest import Artifact, Output, Spec
from bloomery.artifacts.store import Store
from bloomery.config.base import Config, identity
from bloomery.config.run import Execution


@dataclass(frozen=True)
class Stage:
    """A declared stage."""

    # Identity
    name: str
    version: int
    """Raised when the meaning of the output changes."""
    config: type[Config]
    """The section of the run's config that bears identity."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Input name -> "stage.output" that feeds it; the content's digest enters the key."""
    libraries: tuple[str, ...] = ()
    """Distributions that shape the bytes; their versions enter the key."""

    # Execution
    body: str = ""
    """ "module:function", called with a Context; returns {output name: Artifact}."""
    gates: tuple[str, ...] = ()
    """Gate stages whose verdict on the inputs must pass before this one runs or returns a finished result."""
    optional: tuple[str, ...] = ()
    """Inputs that may be absent, as a gate's baseline."""

    def spec(self, config: Config, inputs: Mapping[str, str]) -> Spec:
        """The identity of a run of this stage, `inputs` being content digests."""
        return Spec(
            stage=self.name,
            version=self.version,
            config=identity(config),
            inputs=dict(sorted(inputs.items())),
            libraries={name: version(name) for name in sorted(self.libraries)},
        )

    def load(self) -> Callable[[Context], Mapping[str, Artifact]]:
        """Imports the body."""
        module, _, function = self.body.partition(":")
        loaded: Any = getattr(importlib.import_module(module), function)
        return loaded  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Context:
    """All that a body may see."""

    config: Any
    """The stage's own section, of type `stage.config`."""
    inputs: Mapping[str, Artifact]
    execution: Execution
    """Where and how to run: never shapes the bytes."""
    store: Store
    key: str
    attempt: str
    """Store key of the attempt's folder, data/<stage>/<key>/<attempt>: the only place a body writes to."""
    fence: int
    """Fencing number of the claim; a later attempt has a higher one."""
    sources: Mapping[str, str]
    """Input name -> digest of the manifest that made it: for lineage, never to shape the bytes."""
    about: Mapping[str, str]
    """Whose run this is ({"config": digest, "name": run}): for side records, never to shape the bytes."""
    scratch: Path
    """A local folder, removed after the attempt."""
    log: Callable[[str], None] = print
    """Says a line of progress to whoever watches."""

    def place(self, name: str) -> str:
        """Store key under which output `name` of this attempt stands."""
        return f"{self.attempt}/{name}"

    def artifact(self, name: str, output: Output) -> Artifact:
        """Output `name`, left at its place of this attempt."""
        return Artifact(output, self.place(name), self.store)

    def blob(self, name: str, data: bytes, **about: Any) -> Artifact:
        """Writes a one-file output and returns it; `about` are fields of Output."""
        self.store.put_new(self.place(name), data)
        return self.artifact(name, Output(digest=sha256(data), bytes=len(data), **about))
