"""Refs: the mutable names. Each change is one compare-and-swap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from bloomery.artifacts.store import Store
from bloomery.errors import BloomeryError


class Ref(NamedTuple):
    """A ref's value (a small JSON object that holds at least `digest`) and the tag that `move` expects."""

    name: str
    value: dict[str, Any]
    etag: str


class RefMovedError(BloomeryError):
    """Another moved the ref first."""


def read_ref(store: Store, name: str) -> Ref | None:
    """The ref, or None."""
    found = store.get(f"refs/{name}")
    return Ref(name, json.loads(found.data), found.etag) if found else None


def move_ref(store: Store, name: str, value: dict[str, Any], expected: Ref | None) -> None:
    """Points the ref at `value` if it still stands as `expected` (None: absent).

    Raises:
        RefMovedError: another was faster.
    """
    data = json.dumps(value, sort_keys=True).encode()
    if not store.swap(f"refs/{name}", data, expected.etag if expected else None):
        raise RefMovedError(f"ref {name} was moved by another", "read it again and decide anew")


def list_refs(store: Store, prefix: str = "") -> Iterator[Ref]:
    """Every ref whose name starts with `prefix`, sorted by name."""
    for key in store.keys(f"refs/{prefix}"):
        found = read_ref(store, key.removeprefix("refs/"))
        if found:
            yield found
