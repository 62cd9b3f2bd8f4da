"""Documents that were taken down: refs that every run reads when it starts or resumes.

    refs/takedowns/<dataset> = {digest, documents: {id: {source, start, stop, when}}, elsewhere: [id]}

What was trained on before stays in the journal; from the run's next start on their tokens are never read.
What was taken down from one dataset is from all others that hold it, as the next snapshot's: the first run of
a dataset looks them up, and keeps those that it does not hold in `elsewhere`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bloomery.artifacts.refs import Ref, list_refs, move_ref, read_ref
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
    _record(store, dataset, read_ref(store, f"takedowns/{dataset}"), documents, [])


def _record(
    store: Store, dataset: str, ref: Ref | None, held: Iterable[Located], elsewhere: Iterable[str]
) -> dict[str, Any]:
    """Adds to a dataset's ref; all documents that it holds by then."""
    known = ref.value["documents"] if ref else {}
    new = {
        found.id: {"source": found.source, "start": found.start, "stop": found.stop, "when": time.time()}
        for found in held
        if found.id not in known
    }
    absent = sorted({*(ref.value.get("elsewhere", ()) if ref else ()), *elsewhere})
    value = {"digest": dataset, "documents": known | new, "elsewhere": absent}
    move_ref(store, f"takedowns/{dataset}", value, ref)
    return known | new


def tombstones(
    store: Store, dataset: str, step: int, find: Callable[[list[str]], dict[str, Located]]
) -> tuple[Tombstone, ...]:
    """What is taken down from a dataset, for a run that starts or resumes at `step`.

    Args:
        store: of the refs.
        dataset: its digest.
        step: since which the run does not read them.
        find: where those documents stand that the dataset holds, by id; asked of what others took down.

    Raises:
        RefMovedError: another recorded some at the same time.
    """
    refs = {ref.value["digest"]: ref for ref in list_refs(store, "takedowns/")}
    own = refs.get(dataset)
    documents = own.value["documents"] if own else {}
    told = {*documents, *(own.value.get("elsewhere", ()) if own else ())}
    if fresh := sorted({name for ref in refs.values() for name in ref.value["documents"]} - told):
        held = [found for found in find(fresh).values() if found.split == "train"]
        documents = _record(store, dataset, own, held, set(fresh) - {found.id for found in held})
    return tuple(
        Tombstone(document=name, source=about["source"], start=about["start"], stop=about["stop"], since=step)
        for name, about in sorted(documents.items())
    )
