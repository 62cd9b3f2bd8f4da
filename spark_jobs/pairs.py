"""Pairs: contents that share a band, each pair once, with those bands and its verified Jaccard index. Its
cost follows the new data.

    signatures -> buckets: contents of one band key, before and now -> pairs (a, b) that came or went
        -> shingles of a, then of each b -> Jaccard

A bucket's pairs depend on its members alone, so what this run's last snapshot found (`refs/pairs/<name>`)
stands but for what touched buckets gained and lost: the table is the same as one made from scratch, where all
pairs are gained. In a crowded bucket each member is paired with the LEADERS least ones only, so a bucket of n
makes n * LEADERS pairs, not n^2. The threshold judges later: a changed one pairs nothing again.
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
from spark_jobs.parts import of_files, read_documents, read_live, read_parts, union
from spark_jobs.stages import PAIRS
from spark_jobs.tables import BATCH_BYTES, joined, read_table, scratch_table, write_table

LEADERS = 4
PAIR = ("a", "b", "jaccard")
CHANGES = "band bigint, a string, b string, gained boolean"
JACCARDS = "a string, b string, jaccard double, bands array<bigint>"
SHINGLES = "a string, b string, bands array<bigint>, shingles binary"


class Before(NamedTuple):
    """What the snapshot before found."""

    pairs: Artifact
    signatures: Artifact


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `pairs`."""
    signatures, before = context.inputs["signatures"], _before(context)
    with session(context) as spark:
        changes = scratch_table(spark, context, "changes", _changes(spark, signatures, before))
        pairs = _kept(spark, context, changes, before) if before else _verified(spark, context, changes)
        profile = write_table(spark, context, "pairs", pairs, (), ())
    context.store.remove(context.place("scratch"))
    if before:
        context.log(f"pairs: {profile.rows}; {before.pairs.output.rows} in the snapshot before")
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


def _verified(spark: Any, context: Context, changes: Any) -> Any:
    """The pairs of `_changes` that nothing is known of, with the Jaccard index of their texts' shingles.

    A text goes to each content that it is the b of, and to itself if it is an a: so a meets itself, then
    every b, in one order.
    """
    F = functions()  # noqa: N806
    ends = changes.selectExpr("explode(array(a, b)) AS content", "a", "b", "gained AS bands")
    ends = ends.groupBy("content").agg(
        F.expr("collect_list(IF(b = content, struct(a, bands), NULL)) AS to"),
        F.expr("collect_set(IF(a = content, struct(a, CAST(NULL AS array<bigint>) AS bands), NULL)) AS own"),
    )
    holders = (
        read_documents(spark, context.inputs["signatures"], "id", "content")
        .join(ends, "content")
        .groupBy("content")
        .agg(F.min("id").alias("id"), F.first(F.concat("own", "to")).alias("to"))
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


def _kept(spark: Any, context: Context, changes: Any, before: Before) -> Any:
    """What was found before with its changes, and what is new."""
    found = read_table(spark, before.pairs)
    bands = "IF(gained IS NULL, bands, sort_array(array_except(concat(bands, gained), lost))) AS bands"
    stand = found.join(changes, ["a", "b"], "left").selectExpr(*PAIR, bands).where("size(bands) > 0")
    known = found.join(changes, ["a", "b"], "left_semi").select("a", "b")
    return union([stand, _verified(spark, context, changes.join(known, ["a", "b"], "left_anti"))])


def _changes(spark: Any, now: Artifact, before: Before | None) -> Any:
    """(a, b, gained, lost): pairs whose bands are others than before, with those that came and that went."""
    F = functions()  # noqa: N806
    if before:
        members = _touched(spark, before.signatures, now)
    else:
        members = _banded(read_documents(spark, now, "content", "bands"), was=False, now=True)
    buckets = members.repartition("band").sortWithinPartitions("band", "content")
    changes = buckets.mapInArrow(_pair_up, CHANGES)
    lists = [
        F.sort_array(F.collect_list(F.when(F.col("gained") == it, F.col("band")))) for it in (True, False)
    ]
    return changes.groupBy("a", "b").agg(lists[0].alias("gained"), lists[1].alias("lost"))


def _touched(spark: Any, before: Artifact, now: Artifact) -> Any:
    """Members of each bucket that a document left or came to, those that stay included."""
    old, new = ({part.manifest: part.without for part in read_parts(one)} for one in (before, now))
    tables = {manifest: artifact(now.store, manifest, "documents") for manifest in old.keys() | new.keys()}
    gone, come = (
        [(tables[manifest], one[manifest]) for manifest in sorted(one.keys() - other.keys())]
        for one, other in ((old, new), (new, old))
    )
    stay = [(tables[manifest], old[manifest] | new[manifest]) for manifest in sorted(old.keys() & new.keys())]
    columns = ("content", "bands")
    moved = [
        _banded(read_live(spark, parts, *columns), was=is_gone, now=not is_gone)
        for parts, is_gone in ((gone, True), (come, False))
        if parts
    ]
    for manifest in sorted(old.keys() & new.keys()):
        for files, is_gone in ((new[manifest] - old[manifest], True), (old[manifest] - new[manifest], False)):
            if files:
                rows = of_files(spark, read_table(spark, tables[manifest]), files)
                moved.append(_banded(rows, was=is_gone, now=not is_gone))
    staying = _banded(read_live(spark, stay, *columns), was=True, now=True)
    if not moved:
        return staying.limit(0)
    return union([*moved, staying.join(union(moved).select("band"), "band", "left_semi")])


def _banded(documents: Any, was: bool, now: bool) -> Any:
    """(band, content, was, now): members of buckets, and whether they were and are."""
    return documents.selectExpr("explode(bands) AS band", "content", f"{was} AS was", f"{now} AS now")


def _pair_up(batches: Iterator[Any]) -> Iterator[Any]:
    """Pairs that a bucket gained or lost, of its members by (band, content); each content is paired with the
    LEADERS first ones."""
    import pyarrow as pa

    held = None  # of the bucket that the batch before ended in: its leaders, and its last content
    for table in joined(batches):
        rows = _distinct(pa.concat_tables([held, table]) if held else table)
        if not len(rows):
            continue
        known, last = len(held) - 1 if held else 0, len(rows) - 1
        yield _paired(rows[:last], known)
        held = rows.take(_leading(rows, last))  # the last one may go on, so its flags are not known yet
    if held:
        yield _paired(held, len(held) - 1)


def _distinct(rows: Any) -> Any:
    """One row a band and content, which was or is where any of its rows was or is."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(rows):
        return rows
    bands, contents = rows["band"].to_numpy(), rows["content"].combine_chunks()
    other = pc.not_equal(contents[1:], contents[:-1]).to_numpy(zero_copy_only=False)
    firsts = np.flatnonzero(np.append(True, other | (bands[1:] != bands[:-1])))
    flags = [np.logical_or.reduceat(rows[name].to_numpy(), firsts) for name in ("was", "now")]
    return pa.table([bands[firsts], contents.take(firsts), *flags], schema=rows.schema)


def _ranked(bands: Any, there: Any) -> tuple[Any, Any]:
    """Rows where `there`, and the first of these in each one's bucket, as a place among them."""
    import numpy as np

    rows = np.flatnonzero(there)
    bands = bands[rows]
    firsts = np.flatnonzero(np.append(True, bands[1:] != bands[:-1])[: len(rows)])
    return rows, np.repeat(firsts, np.diff(firsts, append=len(rows)))


def _leading(rows: Any, last: int) -> Any:
    """Rows of the last one's bucket that lead it, before or now, and the last one."""
    import numpy as np

    bands, leading = rows["band"].to_numpy(), np.zeros(len(rows), np.bool_)
    for name in ("was", "now"):
        there, own = _ranked(bands, rows[name].to_numpy())
        leading[there[np.arange(len(there)) - own < LEADERS]] = True
    leading &= bands == bands[last]
    leading[last] = True
    return np.flatnonzero(leading)


def _paired(rows: Any, known: int) -> Any:
    """Pairs gained and lost, but those of two rows before `known`."""
    import numpy as np
    import pyarrow as pa

    bands, contents, size = rows["band"].to_numpy(), rows["content"].combine_chunks(), len(rows)
    codes = []
    for name in ("was", "now"):
        there, own = _ranked(bands, rows[name].to_numpy())
        places = np.arange(len(there))
        one = np.concatenate([own + rank for rank in range(LEADERS)])
        two = np.tile(places, LEADERS)
        new = (one < two) & (there[two] >= known)
        codes.append(there[one[new]] * size + there[two[new]])
    was, now = codes
    lost, gained = (np.setdiff1d(x, y, assume_unique=True) for x, y in ((was, now), (now, was)))
    one, two = np.divmod(np.append(gained, lost), size)
    columns = [bands[two], contents.take(one), contents.take(two), np.arange(len(one)) < len(gained)]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), ["band", "a", "b", "gained"])


def _shingle(ngram: int, batches: Iterator[Any]) -> Iterator[Any]:
    """The shingles of each content's text, for every a that it goes to."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from spark_jobs.minhash import shingles

    for batch in batches:
        found = [shingles(text, ngram).tobytes() for text in batch["text"].to_pylist()]
        rows = np.repeat(np.arange(len(batch)), pc.list_value_length(batch["to"]).to_numpy())
        a, bands = batch["to"].flatten().flatten()
        size = np.cumsum(np.array(list(map(len, found)))[rows])
        # A long text may go to a hundred.
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(size // BATCH_BYTES)) + 1):
            texts = rows[part]
            sets = pa.array([found[row] for row in texts], pa.binary())
            columns = [a.take(part), batch["content"].take(texts), bands.take(part), sets]
            yield pa.RecordBatch.from_arrays(columns, ["a", "b", "bands", "shingles"])


def _verify(batches: Iterator[Any]) -> Iterator[Any]:
    """Of rows by (a, b), where each a stands before its own b, the Jaccard index of the two."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from spark_jobs.minhash import jaccard

    own, one = "", np.zeros(0, np.uint32)
    for batch in batches:
        found = []
        for a, b, data in zip(*(batch[name].to_pylist() for name in ("a", "b", "shingles")), strict=True):
            shingles = np.frombuffer(data, np.uint32)
            if a == b:
                own, one = a, shingles
            else:
                assert a == own, f"the shingles of {a} do not stand before those of {b}"
                found.append(jaccard(one, shingles))
        pairs = batch.filter(pc.not_equal(batch["a"], batch["b"]))
        columns = [pairs["a"], pairs["b"], pa.array(found, pa.float64()), pairs["bands"]]
        yield pa.RecordBatch.from_arrays(columns, [*PAIR, "bands"])
