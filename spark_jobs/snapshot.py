"""The one impure stage: lists the sources. All above it follows from the listing.

today, or no date: list anew; an unchanged listing is a hit; `refs/snapshots/<config>/<today>` moves on
a past date:       replay what was recorded then, or say that nothing was
"""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Callable

from bloomery.artifacts.canonical import canonical, digest, sha256
from bloomery.artifacts.manifest import Artifact, Output, read_manifest
from bloomery.artifacts.refs import RefMovedError, move_ref, read_ref
from bloomery.artifacts.run import Outcome, artifact, commit, finished
from bloomery.artifacts.store import Store
from bloomery.config.sources import SnapshotConfig
from bloomery.errors import BloomeryError
from spark_jobs.readers.listing import File, list_source
from spark_jobs.readers.records import Fields
from spark_jobs.stages import SNAPSHOT


class SnapshotError(BloomeryError):
    """A date of which no snapshot can be had."""


def take(config: SnapshotConfig, store: Store, date: str | None, log: Callable[[str], None]) -> Outcome:
    """Lists every source, or replays the snapshot of a past `date` (YYYY-MM-DD, UTC).

    Raises:
        SnapshotError: a date that is none, lies ahead, or has no recorded snapshot.
        SourceError: a source that is empty or cannot be read.
    """
    ref = f"snapshots/{digest(config.model_dump(mode='json'))}/{_checked(date)}" if date else None
    if date and date < _today():
        return _replay(store, ref or "", date)
    listed = [(source, list_source(source)) for source in config.sources]
    files = [file._asdict() for _, found in listed for file in found]
    fields = {s.name: Fields(s.text_field, s.id_field, s.url_field)._asdict() for s in config.sources}
    listing = canonical({"files": files, "fields": fields})
    for source, found in listed:
        log(f"source {source.name}: {len(found)} files, {sum(f.size for f in found) / 1e6:.1f} MB")
    outcome = _commit(config, store, listing, [file for _, found in listed for file in found])
    if ref:
        _record(store, ref, outcome.digest)
    return outcome


def read_listing(files: Artifact) -> tuple[list[File], dict[str, Fields]]:
    """The files of a snapshot, and the JSONL fields of each source."""
    read = json.loads(files.read())
    # An integer beyond 2^53 is a string in canonical JSON.
    listed = [File(**row | {"size": int(row["size"])}) for row in read["files"]]
    return listed, {name: Fields(**fields) for name, fields in read["fields"].items()}


def _commit(config: SnapshotConfig, store: Store, listing: bytes, files: list[File]) -> Outcome:
    began, spec = time.time(), SNAPSHOT.spec(config, {"listing": sha256(listing)})
    if found := finished(store, spec.key):
        return Outcome(found, hit=True)
    attempt = f"data/snapshot/{spec.key}/000000-{uuid.uuid4().hex[:8]}"
    place = f"{attempt}/files"
    store.put_new(place, listing)
    sources = {
        f.source: sum(other.source == f.source for other in files)
        for f in {f.source: f for f in files}.values()
    }
    output = Output(
        digest=sha256(listing),
        documents=len(files),
        bytes=sum(f.size for f in files),
        facts={"files": sources},
    )
    return commit(store, spec, {"files": Artifact(output, place, store)}, {}, attempt, began)


def _replay(store: Store, ref: str, date: str) -> Outcome:
    recorded = read_ref(store, ref)
    if recorded is None:
        raise SnapshotError(
            f"no snapshot of these sources was recorded on {date}, and the past cannot be listed",
            "choose a recorded date (`bloomery refs snapshots/`), or run without a date",
        )
    found = recorded.value["digest"]
    artifact(store, found, "files")
    return Outcome(read_manifest(store, found), hit=True)


def _record(store: Store, ref: str, manifest: str) -> None:
    while True:
        before = read_ref(store, ref)
        if before and before.value["digest"] == manifest:
            return
        try:
            move_ref(store, ref, {"digest": manifest}, before)
        except RefMovedError:
            continue
        return


def _checked(date: str) -> str:
    try:
        parsed = datetime.date.fromisoformat(date)
    except ValueError:
        raise SnapshotError(f"{date!r} is not a date", "give YYYY-MM-DD") from None
    if parsed.isoformat() > _today():
        raise SnapshotError(f"{date} lies ahead (today is {_today()}, UTC)", "give today or a past date")
    return parsed.isoformat()


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
