"""Documents that were taken down from a dataset: a ref that every run of it reads when it starts or resumes.

    refs/takedowns/<dataset> = {digest, documents: {id: {source, start, stop, when}}}

What was trained on before stays in the journal; from the run's next start on their tokens are never read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bloomery.artifacts.refs import move_ref, read_ref
from bloomery.artifacts.store import Store
from bloomery.shards.format import ShardError
from bloomery.shards.lookup import Located
from bloomery.shards.overlay import Tombstone


def take_down(store: Store, dataset: str, documents: Sequence[Located]) -> None:
    """Records that documents of a dataset are never to be emitted again; known ones keep their time.

    Raises:
        ShardError: one is held out: no run is trained on it.
        RefMovedError: another recorded some at the same time.
    """
    if held_out := [found.id for found in documents if found.split != "train"]:
        raise ShardError(f"held out, so no run is trained on it: {', '.join(held_out)}", "leave it out")
    ref = read_ref(store, f"takedowns/{dataset}")
    known = ref.value["documents"] if ref else {}
    new = {
        found.id: {"source": found.source, "start": found.start, "stop": found.stop, "when": time.time()}
        for found in documents
        if found.id not in known
    }
    move_ref(store, f"takedowns/{dataset}", {"digest": dataset, "documents": known | new}, ref)


def tombstones(store: Store, dataset: str, step: int) -> tuple[Tombstone, ...]:
    """What is taken down from a dataset, for a run that starts or resumes at `step`."""
    ref = read_ref(store, f"takedowns/{dataset}")
    return tuple(
        Tombstone(document=name, source=about["source"], start=about["start"], stop=about["stop"], since=step)
        for name, about in sorted((ref.value["documents"] if ref else {}).items())
    )
