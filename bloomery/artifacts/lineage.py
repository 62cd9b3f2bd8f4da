"""Finding a manifest by ref or digest, describing it, and tracing what it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bloomery.artifacts.manifest import read_action, read_manifest
from bloomery.artifacts.refs import read_ref
from bloomery.artifacts.store import Store
from bloomery.errors import BloomeryError


@dataclass(frozen=True)
class Node:
    """A manifest and the manifests that made its inputs."""

    stage: str
    digest: str
    sources: Mapping[str, Node]

    def nodes(self) -> Iterator[Node]:
        """This one and all that led to it."""
        yield self
        for source in self.sources.values():
            yield from source.nodes()


def find(store: Store, what: str) -> str:
    """Digest of the manifest that a ref, a digest, or the first digits of one names.

    Raises:
        BloomeryError: nothing, or more than one, is named so.
    """
    ref = read_ref(store, what) if "/" in what else None
    if ref:
        return str(ref.value["manifest"] if "manifest" in ref.value else ref.value["digest"])
    found = [key.removeprefix("manifests/") for key in store.keys(f"manifests/{what}")] if what else []
    if len(found) != 1:
        many = f"{len(found)} manifests start with {what!r}" if found else f"no ref or manifest {what!r}"
        raise BloomeryError(
            many, "`bloomery refs` lists the refs; a digest may be cut short while it is unique"
        )
    return found[0]


def describe(store: Store, digest: str) -> dict[str, Any]:
    """A manifest with its key, and (side record) the places of its outputs and what made its inputs."""
    manifest = read_manifest(store, digest)
    action = read_action(store, manifest.spec.key)
    return {
        "manifest": digest,
        "key": manifest.spec.key,
        "committed": action is not None and action.manifest == digest,
        **manifest.model_dump(),
        "action": action.model_dump() if action else None,
    }


def trace(store: Store, digest: str) -> Node:
    """The tree of manifests that led to this one."""
    manifest = read_manifest(store, digest)
    action = read_action(store, manifest.spec.key)
    sources = action.sources if action else {}
    return Node(manifest.spec.stage, digest, {name: trace(store, source) for name, source in sources.items()})
