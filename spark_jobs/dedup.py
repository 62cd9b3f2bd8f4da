"""Dedup: exact duplicates, near duplicates, then the held-out split. Few jobs, no graph on the driver.

    kept documents -> signatures: content hash, shingles, band keys                                    (job 1)
    same content   -> one representative, the least id
    same band key  -> pairs of representatives -> verified Jaccard -> edges -> components -> survivor  (job 2)
    decisions x documents -> table: kept | duplicate (duplicate_of, jaccard), split                    (job 3)

The survivor of a component is its least id. In a crowded bucket each member is paired with the LEADERS
least ids only, so a bucket of n makes n * LEADERS pairs, not n^2. Everything is a set or a minimum: the
same bytes for any partitioning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import DedupConfig
from spark_jobs.components import components
from spark_jobs.engine import functions, session
from spark_jobs.tables import check_balance, funnel, read_table, record_batch, scratch_table, write_table

LEADERS = 4
SIGNATURES = "id string, content string, split string, bands array<bigint>, shingles array<bigint>"
PAIRS = "a string, b string, jaccard double"


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `dedup`.

    Raises:
        BalanceError: rows were lost or doubled.
    """
    documents = context.inputs["documents"]
    with session(context) as spark:
        kept = read_table(spark, documents).where("status = 'kept'")
        signatures = scratch_table(
            spark,
            context,
            "signatures",
            kept.select("id", "text").mapInArrow(partial(_sign, context.config), SIGNATURES),
        )
        decisions = scratch_table(spark, context, "decisions", _decide(signatures, context.config))
        rows = _rows(kept, decisions)
        output, profile = write_table(
            spark, context, "documents", rows, ("status", "rule", "split"), ("bytes",)
        )
    context.store.remove(context.place("scratch"))
    check_balance("dedup", documents.output.documents, output.rows or 0)
    splits = {split: count for (split,), count in sorted(profile.counts_by("split").items()) if split}
    about = {
        "documents": profile.counts_by("status")[("kept",)],
        "bytes": profile.sums_by("bytes", "status")[("kept",)],
        "facts": funnel(profile) | {"splits": splits},
    }
    return {"documents": context.artifact("documents", output.model_copy(update=about))}


def _decide(signatures: Any, config: DedupConfig) -> Any:
    """(id, content, split, rep, survivor, jaccard) of every document."""
    F = functions()  # noqa: N806

    exact = signatures.groupBy("content").agg(F.min("id").alias("rep"))
    reps = signatures.join(exact.select(F.col("rep").alias("id")), "id", "left_semi")
    sets = reps.select("id", "shingles")
    edges = _with_jaccard(_candidates(reps), sets).where(F.col("jaccard") >= config.threshold)
    near = _with_jaccard(components(edges.select("a", "b")).toDF("b", "a"), sets)
    return (
        signatures.select("id", "content", "split")
        .join(exact, "content")
        .join(near.select(F.col("b").alias("rep"), F.col("a").alias("survivor"), "jaccard"), "rep", "left")
        .select("id", "split", "rep", F.coalesce("survivor", "rep").alias("survivor"), "jaccard")
    )


def _candidates(reps: Any) -> Any:
    """Distinct pairs (a < b) of ids that share a band key, b against the least ids of the bucket."""
    F = functions()  # noqa: N806

    pairs = f"""
        explode(flatten(transform(slice(ids, 1, {LEADERS}),
            a -> transform(filter(ids, b -> b > a), b -> struct(a AS a, b AS b))))) AS pair
    """
    buckets = (
        reps.select("id", F.explode("bands").alias("band"))
        .groupBy("band")
        .agg(F.array_sort(F.collect_list("id")).alias("ids"))
    )
    return buckets.where(F.size("ids") > 1).selectExpr(pairs).select("pair.a", "pair.b").distinct()


def _with_jaccard(pairs: Any, sets: Any) -> Any:
    """Pairs (a, b) with the Jaccard index of their shingles."""
    F = functions()  # noqa: N806

    one = sets.select(F.col("id").alias("a"), F.col("shingles").alias("one"))
    other = sets.select(F.col("id").alias("b"), F.col("shingles").alias("other"))
    joined = pairs.join(one, "a").join(other, "b").select("a", "b", "one", "other")
    return joined.mapInArrow(_verify, PAIRS)


def _rows(kept: Any, decisions: Any) -> Any:
    """The output's rows: each kept document of the input once, with the text of survivors only."""
    F = functions()  # noqa: N806

    duplicate = F.col("survivor") != F.col("id")
    return kept.join(decisions, "id").select(
        *("id", "source", "path", "offset", "url"),
        F.when(~duplicate, F.col("text")).alias("text"),
        *("bytes", "language"),
        F.when(duplicate, "duplicate").otherwise("kept").alias("status"),
        F.when(duplicate & (F.col("rep") != F.col("id")), "dedup.exact")
        .when(duplicate, "dedup.near")
        .alias("rule"),
        F.when(duplicate, F.col("survivor")).alias("duplicate_of"),
        F.when(duplicate, F.coalesce("jaccard", F.lit(1.0))).alias("jaccard"),
        F.when(~duplicate, F.col("split")).alias("split"),
    )


def split_of(content: str, held_out: float) -> str:
    """`train` or `held_out`, drawn by the content's own hash: a text keeps its split in every snapshot."""
    return "held_out" if int(content[:13], 16) < held_out * 16**13 else "train"


def _sign(config: DedupConfig, batches: Iterator[Any]) -> Iterator[Any]:
    from spark_jobs.minhash import MinHash, normalised, shingles

    minhash = MinHash.drawn(config.bands, config.rows, config.seed)
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            content = hashlib.sha256(normalised(row["text"]).encode()).hexdigest()
            found = shingles(row["text"], config.ngram)
            split = split_of(content, config.held_out)
            rows.append((row["id"], content, split, minhash.band_keys(found), found.view("int64")))
        yield record_batch(rows, SIGNATURES)


def _verify(batches: Iterator[Any]) -> Iterator[Any]:
    from spark_jobs.minhash import jaccard

    for batch in batches:
        pairs = zip(*(batch.column(name) for name in ("a", "b", "one", "other")), strict=True)
        rows = [
            (a.as_py(), b.as_py(), jaccard(one.values.to_numpy(), other.values.to_numpy()))
            for a, b, one, other in pairs
        ]
        yield record_batch(rows, PAIRS)
