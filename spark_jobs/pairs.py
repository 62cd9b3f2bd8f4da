"""Pairs: contents that share a band, each pair once, with those bands and its verified Jaccard index. Its
cost follows the new data.

    signatures -> buckets: contents of one band key -> pairs (a, b) within a bucket -> shingles of a, then of
    each b -> Jaccard

A bucket's pairs depend on its members alone. So what this run's last snapshot found (`refs/pairs/<name>`)
stands for each bucket that gained and lost nothing, and only touched buckets are paired again: the table is
the same as one made from scratch. In a crowded bucket each member is paired with the LEADERS least ones only,
so a bucket of n makes n * LEADERS pairs, not n^2. The threshold judges later: a changed one pairs nothing
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from bloomery.artifacts.manifest import Artifact, Output, read_action, read_manifest
from bloomery.artifacts.refs import RefMovedError, move_ref, read_ref
from bloomery.artifacts.run import MissingInputError, artifact
from bloomery.artifacts.stage import Context
from bloomery.config.base import identity
from spark_jobs.engine import functions, session
from spark_jobs.parts import read_documents, read_live, read_parts, union
from spark_jobs.stages import PAIRS
from spark_jobs.tables import BATCH_BYTES, FILE, joined, read_table, record_batch, scratch_table, write_table

LEADERS = 4
PAIR = ("a", "b", "jaccard")
CANDIDATES = "band bigint, a string, b string"
JACCARDS = "a string, b string, jaccard double"
SHINGLES = "a string, b string, shingles binary"


class Before(NamedTuple):
    """What the snapshot before found."""

    pairs: Artifact
    signatures: Artifact


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `pairs`."""
    signatures, before = context.inputs["signatures"], _before(context)
    with session(context) as spark:
        signed = read_documents(spark, signatures, "content", "bands")
        members = signed.selectExpr("explode(bands) AS band", "content")
        if before:
            pairs = _again(spark, context, before, members)
        else:
            candidates = scratch_table(spark, context, "candidates", _once(_candidates(members), "a", "b"))
            pairs = candidates.join(_verified(spark, context, candidates.select("a", "b")), ["a", "b"])
        profile = write_table(spark, context, "pairs", pairs.select(*PAIR, "bands"), (), ())
    context.store.remove(context.place("scratch"))
    return {"pairs": context.artifact("pairs", Output(digest=profile.digest, rows=profile.rows))}


def remember(context: Context) -> None:
    """Notes the pairs that fed this attempt as those that the run's next snapshot starts from."""
    if "name" not in context.about:  # a stage by itself, of no run
        return
    name, value = f"pairs/{context.about['name']}", {"digest": context.sources["pairs"]}
    ref = read_ref(context.store, name)
    if ref is None or ref.value != value:
        try:
            move_ref(context.store, name, value, ref)
        except RefMovedError:  # by another run of this name, whose pairs serve as well
            return


def _verified(spark: Any, context: Context, pairs: Any) -> Any:
    """Pairs (a, b) of contents, a < b, with the Jaccard index of their texts' shingles, (a, b, jaccard).

    A text goes to each content that it is the b of, and to itself: so a meets itself, then every b, in one
    order.
    """
    F = functions()  # noqa: N806
    ends = union([pairs.selectExpr("a AS content", "a"), pairs.selectExpr("b AS content", "a")])
    ends = ends.groupBy("content").agg(F.collect_set("a").alias("to"))
    holders = (
        read_documents(spark, context.inputs["signatures"], "id", "content")
        .join(ends, "content")
        .groupBy("content")
        .agg(F.min("id").alias("id"), F.first("to").alias("to"))
    )
    holders = scratch_table(spark, context, "holders", holders)
    texts = read_documents(spark, context.inputs["documents"], "id", "text").join(holders, "id")
    sets = texts.select("content", "to", "text").mapInArrow(partial(_shingle, context.config.ngram), SHINGLES)
    return sets.repartition("a").sortWithinPartitions("a", "b").mapInArrow(_verify, JACCARDS)


def _before(context: Context) -> Before | None:
    """The pairs of this run's last snapshot, where they were made by the same rules and share a part."""
    store = context.store
    ref = read_ref(store, f"pairs/{context.about['name']}") if "name" in context.about else None
    if ref is None:
        return None
    try:
        pairs, spec = (
            artifact(store, ref.value["digest"], "pairs"),
            read_manifest(store, ref.value["digest"]).spec,
        )
        action = read_action(store, spec.key)
        assert action is not None
        before = Before(pairs, artifact(store, action.sources["signatures"], "documents"))
        shared = _manifests(before.signatures) & _manifests(context.inputs["signatures"])
    except MissingInputError:
        return None
    same = spec.config == identity(context.config) and spec.version == PAIRS.version
    return before if same and shared else None


def _manifests(collection: Artifact) -> set[str]:
    return {part.manifest for part in read_parts(collection)}


def _again(spark: Any, context: Context, before: Before, members: Any) -> Any:
    """The pairs of all buckets: found before where nothing has changed, paired anew in touched ones."""
    touched = scratch_table(spark, context, "touched", _touched(spark, before, context.inputs["signatures"]))
    found = read_table(spark, before.pairs)
    candidates = _once(_candidates(members.join(touched, "band", "left_semi")), "a", "b")
    candidates = scratch_table(spark, context, "candidates", candidates)
    known = found.select(*PAIR)
    unknown = candidates.select("a", "b").join(known, ["a", "b"], "left_anti")
    unknown = scratch_table(spark, context, "unknown", unknown)
    context.log(f"pairs: {unknown.count()} new ones to verify, all others stand from the snapshot before")
    new = _verified(spark, context, unknown)
    paired = candidates.join(union([known, new]), ["a", "b"]).selectExpr(*PAIR, "explode(bands) AS band")
    stand = found.selectExpr(*PAIR, "explode(bands) AS band").join(touched, "band", "left_anti")
    return _once(union([stand.select(*PAIR, "band"), paired]), *PAIR)


def _touched(spark: Any, before: Before, now: Artifact) -> Any:
    """Band keys of every content that came or went between two snapshots, and of few others."""
    old = {part.manifest: part.without for part in read_parts(before.signatures)}
    new = {part.manifest: part.without for part in read_parts(now)}
    changed = []
    for manifest in old.keys() | new.keys():
        table = artifact(now.store, manifest, "documents")
        if manifest not in old or manifest not in new:
            changed.append(read_live(spark, table, frozenset()))
        elif moved := old[manifest] ^ new[manifest]:
            files = spark.createDataFrame(sorted(moved), "source string, path string")
            changed.append(
                read_live(spark, table, frozenset()).join(files.hint("broadcast"), list(FILE), "left_semi")
            )
    if not changed:
        return spark.createDataFrame([], "band bigint")
    return union([frame.selectExpr("explode(bands) AS band") for frame in changed]).distinct()


def _candidates(members: Any) -> Any:
    """(band, a, b) with a < b: pairs of contents in a bucket, b against the least contents of it."""
    buckets = members.select("band", "content").repartition("band").sortWithinPartitions("band", "content")
    return buckets.mapInArrow(_pair_up, CANDIDATES)


def _once(banded: Any, *pair: str) -> Any:
    """Rows of a pair and a band as one of each pair with its bands, ascending."""
    F = functions()  # noqa: N806
    return banded.groupBy(*pair).agg(F.sort_array(F.collect_list("band")).alias("bands"))


def _pair_up(batches: Iterator[Any]) -> Iterator[Any]:
    """Pairs each content of a bucket with its LEADERS first ones, of rows by (band, content)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    leaders = None  # of the bucket that the batch before ended in, and its last content
    for table in joined(batches):
        known = len(leaders) if leaders else 0
        rows = pa.concat_tables([leaders, table]) if leaders else table
        if not len(rows):
            continue
        bands = rows["band"].to_numpy()
        other = np.append(True, bands[1:] != bands[:-1])
        fresh = pc.not_equal(rows["content"][1:], rows["content"][:-1]).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(other | np.append(True, fresh))  # exact duplicates are one content
        rows, firsts = rows.take(places), np.flatnonzero(other[places])
        own = np.repeat(firsts, np.diff(firsts, append=len(rows)))  # where each row's bucket begins
        pairs = [(own + rank, np.arange(len(rows))) for rank in range(LEADERS)]
        one, two = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
        new = (one < two) & (two >= known)
        one, two = one[new], two[new]
        contents = rows["content"].combine_chunks()
        columns = [pa.array(bands[places][two]), contents.take(one), contents.take(two)]
        yield pa.RecordBatch.from_arrays(columns, ["band", "a", "b"])
        first, last = int(firsts[-1]), len(rows) - 1  # the last one may stand in the next batch, too
        leaders = rows.take(np.unique([*range(first, min(first + LEADERS, last)), last]))


def _shingle(ngram: int, batches: Iterator[Any]) -> Iterator[Any]:
    """The shingles of each content's text, for every a that it goes to."""
    from spark_jobs.minhash import shingles

    rows, size = [], 0
    for batch in batches:
        for row in batch.to_pylist():
            found = shingles(row["text"], ngram).tobytes()
            for a in row["to"]:
                rows.append((a, row["content"], found))
                size += len(found)
                if size > BATCH_BYTES:  # a long text may go to a hundred
                    yield record_batch(rows, SHINGLES)
                    rows, size = [], 0
    yield record_batch(rows, SHINGLES)


def _verify(batches: Iterator[Any]) -> Iterator[Any]:
    """Of rows by (a, b), where each a stands before its own b, the Jaccard index of the two."""
    import numpy as np

    from spark_jobs.minhash import jaccard

    columns = ("a", "b", "shingles")
    own, one = "", np.zeros(0, np.uint32)
    for batch in batches:
        rows = []
        for a, b, found in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            shingles = np.frombuffer(found, np.uint32)
            if a == b:
                own, one = a, shingles
            else:
                assert a == own, f"the shingles of {a} do not stand before those of {b}"
                rows.append((a, b, jaccard(one, shingles)))
        yield record_batch(rows, JACCARDS)
