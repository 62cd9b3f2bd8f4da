"""The checkpoints that a run may go on from, of every tier. No torch here: the launcher lists them.

    journal's live checkpoints, in the store or on its node's disk
    + snapshots in this node's memory -> the newest first

A snapshot in memory counts if the journal knows it, or if it is newer than the head and no later attempt has
published since: another timeline is never mixed in. One that was trained on steps that are excluded by now
does not count.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.manifest import read_action
from bloomery.artifacts.store import LocalStore, Store
from training.layout import STANDING, Standing

MEMORY = Path("/dev/shm")  # noqa: S108  what stands there is hashed


def memory_folder(store: Store, run: str) -> Path:
    """Where this node keeps a run's snapshots."""
    name = hashlib.sha256(f"{store.uri} {run}".encode()).hexdigest()[:16]
    return MEMORY / f"bloomery-{os.getuid()}" / name


def standing_checkpoints(journal: Journal, memory: Path, cache: Path, fence: int) -> tuple[Standing, ...]:
    """What an attempt may go on from, the best first.

    Args:
        journal: of the run.
        memory: the run's folder in this node's memory.
        cache: where copies of an object store's checkpoints are kept on this node.
        fence: of the attempt.
    """
    head, stored = journal.head(), list(_stored(journal, cache))
    known = {found.digest: found for found in stored}
    kept = []
    for found in _in_memory(memory):
        newer = head is None or (found.step > head.step and found.fence >= head.fence)
        if found.digest in known:
            place = known[found.digest]
            kept.append(found.model_copy(update={"place": place.place, "manifest": place.manifest}))
        elif newer and found.fence < fence:
            kept.append(found.model_copy(update={"place": ""}))
    # The sort is stable: of equal steps a snapshot in memory is the first, and the newest of them.
    best = sorted([*sorted(kept, key=lambda f: -f.fence), *stored], key=lambda found: -found.step)
    excluded = journal.excluded()
    return tuple(found for found in best if not found.trained_on(excluded))


def _stored(journal: Journal, cache: Path) -> Iterator[Standing]:
    store = journal.store
    root = store.root if isinstance(store, LocalStore) else cache
    for checkpoint in journal.live():
        action = read_action(store, checkpoint.manifest.spec.key)
        if action is None:  # its commit was taken back
            continue
        yield Standing(
            step=checkpoint.step,
            digest=checkpoint.manifest.outputs["weights"].digest,
            fence=checkpoint.fence,
            folder=root / action.places["weights"],
            place=action.places["weights"],
            manifest=checkpoint.digest,
            excluded=tuple(checkpoint.excluded),
            adopted=checkpoint.adopted,
        )


def _in_memory(memory: Path) -> Iterator[Standing]:
    for path in memory.glob(f"*/*/{STANDING}"):
        try:
            yield Standing.model_validate_json(path.read_bytes()).model_copy(update={"folder": path.parent})
        except (OSError, ValueError):  # half-written: it does not stand
            continue
