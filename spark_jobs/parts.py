"""Collections: a table that grows by parts, as a snapshot does.

    snapshot    [part 1 without a.jsonl] [part 2]          a.jsonl was replaced: part 2 holds its new version
    ingest      [table 1 without a.jsonl] [table 2]        each part's table made by a stage of its own
    measure, clean, signatures: likewise

A collection is a small file that names its parts' manifests and the files of each that no longer count. A
part that an earlier snapshot has brought is a hit. Content digests are sums over rows, so the collection's
digest is that of the whole table, whatever the parts are: a snapshot taken at once and one that grew for a
year have the same keys from there on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.manifest import Artifact, Output, read_manifest
from bloomery.artifacts.run import artifact, run_stage
from bloomery.artifacts.stage import Context, Stage
from bloomery.artifacts.store import Store
from spark_jobs.tables import FILE, Profile, read_table

SUFFIX = ".parts"
"""Ends the place of a collection; a table's place is a folder without it."""
File = tuple[str, str]
"""(source, path)"""


class Part(NamedTuple):
    """A part of a collection."""

    manifest: str
    """Digest of the manifest of the stage that made it."""
    without: frozenset[File] = frozenset()
    """Files of it that were replaced or removed since."""


def read_parts(collection: Artifact) -> list[Part]:
    """The parts of a collection, oldest first."""
    return [
        Part(row["manifest"], frozenset((source, path) for source, path in row["without"]))
        for row in json.loads(collection.read())
    ]


def write_parts(store: Store, place: str, parts: Sequence[Part], output: Output) -> Artifact:
    """A collection at `place`; `output` tells of the whole."""
    rows = [{"manifest": part.manifest, "without": sorted(map(list, part.without))} for part in parts]
    store.put_new(f"{place}{SUFFIX}", canonical(rows))
    needs = tuple(read_manifest(store, part.manifest).spec.key for part in parts)
    return Artifact(output, f"{place}{SUFFIX}", store, needs)


def gather(context: Context, stage: Stage) -> Mapping[str, Artifact]:
    """Body of a stage that runs `stage` once a part of its only collection; the parts' tables make its own.

    `stage` has the outputs `documents`, a table, and `profile`, its profile.
    """
    parts = run_parts(context, stage, next(iter(context.inputs.values())))
    profile = profile_of_parts(context.store, parts)
    collection = write_parts(context.store, context.place("documents"), parts, profile.output())
    return {"documents": collection, "profile": context.blob("profile", profile.to_bytes())}


def run_parts(context: Context, stage: Stage, collection: Artifact) -> list[Part]:
    """Runs `stage` once a part of `collection`; the parts of what it made."""
    (upstream,) = {wire.partition(".")[0] for wire in stage.inputs.values()}
    made, parts = [], read_parts(collection)
    for number, part in enumerate(parts, 1):
        outcome = run_stage(
            stage,
            context.config,
            {upstream: part.manifest},
            context.store,
            execution=context.execution,
            about=context.about,
            log=context.log,
        )
        if len(parts) > 1:
            context.log(f"part {number} of {len(parts)}: {'done already' if outcome.hit else 'made'}")
        made.append(Part(outcome.digest, part.without))
    return made


def profile_of_parts(store: Store, parts: Sequence[Part]) -> Profile:
    """The profile of the whole table, from those that its parts have."""
    profiles = [
        Profile.from_bytes(artifact(store, part.manifest, "profile").read()).without(part.without)
        for part in parts
    ]
    return reduce(add, profiles)


def tables_of(table: Artifact, output: str = "documents") -> list[tuple[Artifact, frozenset[File]]]:
    """Every table that `table` consists of, each with the files in it that do not count."""
    if not table.place.endswith(SUFFIX):
        return [(table, frozenset())]
    return [(artifact(table.store, part.manifest, output), part.without) for part in read_parts(table)]


def read_documents(spark: Any, table: Artifact, *columns: str) -> Any:
    """The DataFrame of a table or collection, of all columns or of some."""
    return read_live(spark, tables_of(table), *columns)


def read_live(spark: Any, tables: Sequence[tuple[Artifact, Collection[File]]], *columns: str) -> Any:
    """The rows of tables of one schema that are of no file that goes with their table."""
    whole = [table for table, without in tables if not without]
    frames = [read_table(spark, *whole)] if whole else []
    for table, without in tables:
        if without:
            frames.append(of_files(spark, read_table(spark, table), without, "left_anti"))
    return union([frame.select(*columns) if columns else frame for frame in frames])


def of_files(spark: Any, documents: Any, files: Collection[File], how: str = "left_semi") -> Any:
    """The documents of some files, or by "left_anti" those of all others."""
    named = spark.createDataFrame(sorted(files), "source string, path string").hint("broadcast")
    return documents.join(named, list(FILE), how).select(*documents.columns)


def union(frames: Sequence[Any]) -> Any:
    """All rows of frames that have the same columns."""
    return reduce(lambda one, other: one.unionByName(other), frames)
