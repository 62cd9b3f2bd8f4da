"""The one impure stage: lists the sources. All above it follows from the listing.

today, or no date: list anew; an unchanged listing is a hit; `refs/snapshots/<config>/<today>` moves on
a past date:       replay what was recorded then, or say that nothing was

A snapshot is a collection: what the one before it (`refs/heads/<config>`) had listed stays in its part,
new and changed files make a new part, removed and replaced ones no longer count in theirs.
"""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from bloomery.artifacts.canonical import canonical, digest, sha256
from bloomery.artifacts.manifest import Artifact, Output, read_manifest
from bloomery.artifacts.refs import RefMovedError, move_ref, read_ref
from bloomery.artifacts.run import MissingInputError, Outcome, artifact, commit, finished
from bloomery.artifacts.stage import Stage
from bloomery.artifacts.store import Store
from bloomery.config.base import Config
from bloomery.config.sources import SnapshotConfig, Source
from bloomery.errors import BloomeryError
from spark_jobs.evalsets import read_eval_sets
from spark_jobs.parts import Part, read_parts, write_parts
from spark_jobs.readers.fields import Fields
from spark_jobs.readers.listing import File, list_source
from spark_jobs.stages import SNAPSHOT

PART = Stage("part", 1, Config)
"""New and changed files of a snapshot: a stage of nothing but its listing."""


class SnapshotError(BloomeryError):
    """A date of which no snapshot can be had."""


def take(config: SnapshotConfig, store: Store, date: str | None, log: Callable[[str], None]) -> Outcome:
    """Lists every source, or replays the snapshot of a past `date` (YYYY-MM-DD, UTC).

    Raises:
        SnapshotError: a date that is none, lies ahead, or has no recorded snapshot.
        SourceError: a source that is empty or cannot be listed.
        EvalSetError: an eval set with a line that is no item.
    """
    config_digest = digest(config.model_dump(mode="json"))
    refs, head = f"snapshots/{config_digest}", f"heads/{config_digest}"
    checked = _checked(date) if date else None
    if checked and checked < _today():
        return _replay(store, f"{refs}/{checked}", checked)
    listed = [(source, list_source(source)) for source in config.sources]
    for source, found in listed:
        log(f"source {source.name}: {len(found)} files, {sum(f.size for f in found) / 1e6:.1f} MB")
    fields = {source.name: _fields(source) for source in config.sources}
    files = [file for _, found in listed for file in found]
    evals = canonical(read_eval_sets(config.eval_sets))
    outcome = _commit(config, store, _head(store, head), files, fields, evals, log)
    _record(store, head, outcome.digest)
    if checked:
        _record(store, f"{refs}/{checked}", outcome.digest)
    return outcome


def read_listing(files: Artifact) -> tuple[list[File], dict[str, Fields]]:
    """The files of a part, and the fields of each source."""
    read = json.loads(files.read())
    # An integer beyond 2^53 is a string in canonical JSON.
    listed = [File(**row | {"size": int(row["size"])}) for row in read["files"]]
    return listed, {name: Fields(**fields) for name, fields in read["fields"].items()}


def _fields(source: Source) -> Fields:
    return Fields(
        source.text_field, source.id_field, source.url_field, source.date_field, source.licence_field
    )


def _listing(files: list[File], fields: dict[str, Fields]) -> bytes:
    named = {file.source for file in files}
    about = {name: found._asdict() for name, found in fields.items() if name in named}
    return canonical({"files": [file._asdict() for file in files], "fields": about})


def _head(store: Store, ref: str) -> list[tuple[Part, list[File], dict[str, Fields]]]:
    """The parts of the snapshot before, each with its live files; none where there is no such snapshot."""
    recorded = read_ref(store, ref)
    if recorded is None:
        return []
    try:
        parts = read_parts(artifact(store, recorded.value["digest"], "files"))
        listings = [read_listing(artifact(store, part.manifest, "files")) for part in parts]
    except MissingInputError:  # its commit was taken back: all files are new
        return []
    return [
        (part, [f for f in files if (f.source, f.path) not in part.without], fields)
        for part, (files, fields) in zip(parts, listings, strict=True)
    ]


def _commit(
    config: SnapshotConfig,
    store: Store,
    head: list[tuple[Part, list[File], dict[str, Fields]]],
    files: list[File],
    fields: dict[str, Fields],
    evals: bytes,
    log: Callable[[str], None],
) -> Outcome:
    began, listing = time.time(), _listing(files, fields)
    spec = SNAPSHOT.spec(config, {"listing": sha256(listing), "evals": sha256(evals)})
    if found := finished(store, spec.key):
        return Outcome(found, hit=True)
    wanted, parts = set(files), []
    for part, live, mapped in head:
        stays = {f for f in live if f in wanted and mapped[f.source] == fields[f.source]}
        wanted -= stays
        gone = frozenset((f.source, f.path) for f in live if f not in stays)
        if stays:
            parts.append(Part(part.manifest, part.without | gone))
    if added := [file for file in files if file in wanted]:
        parts.append(Part(_commit_part(store, _listing(added, fields)).digest))
    log(f"snapshot: {len(files)} files in {len(parts)} parts, {len(added)} of them new or changed")
    output = Output(
        digest=sha256(listing),
        documents=len(files),
        bytes=sum(f.size for f in files),
        facts={"files": {name: sum(f.source == name for f in files) for name in fields}},
    )
    attempt = _attempt(SNAPSHOT.name, spec.key)
    collection = write_parts(store, f"{attempt}/files", parts, output)
    store.put_new(f"{attempt}/evals", evals)
    about = Output(digest=sha256(evals), rows=len(json.loads(evals)), bytes=len(evals))
    outputs = {"files": collection, "evals": Artifact(about, f"{attempt}/evals", store)}
    return commit(store, spec, outputs, {}, attempt, began)


def _commit_part(store: Store, listing: bytes) -> Outcome:
    began, spec = time.time(), PART.spec(Config(), {"listing": sha256(listing)})
    attempt = _attempt(PART.name, spec.key)
    place, files = f"{attempt}/files", json.loads(listing)["files"]
    if found := finished(store, spec.key):
        return Outcome(found, hit=True)
    store.put_new(place, listing)
    about: dict[str, Any] = {"documents": len(files), "bytes": sum(int(row["size"]) for row in files)}
    output = Output(digest=sha256(listing), **about)
    return commit(store, spec, {"files": Artifact(output, place, store)}, {}, attempt, began)


def _attempt(stage: str, key: str) -> str:
    return f"data/{stage}/{key}/000000-{uuid.uuid4().hex[:8]}"


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
