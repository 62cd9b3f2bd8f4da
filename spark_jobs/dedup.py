"""Dedup: which documents say the same, and which of them survives. Decisions only: texts stay where they are.

    one URL (if asked for)         -> one document
    one content                    -> one document
    pairs at or above threshold    -> components of contents -> one content

The survivor is the least by (place of its source in `prefer`, content, id): a pure function of the set of
documents, so neither partitions nor the order of snapshots change it. A new document may unseat an earlier
survivor; the new table says so, the old one stays.

Row: id, source, path, length, content, status (kept | duplicate), rule, duplicate_of, jaccard, split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import DedupConfig
from spark_jobs.components import components
from spark_jobs.engine import functions, session
from spark_jobs.pairs import remember, verified
from spark_jobs.parts import read_documents, union
from spark_jobs.tables import FILE, check_balance, read_table, scratch_table, write_table


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `dedup`.

    Raises:
        BalanceError: rows were lost or doubled.
    """
    remember(context)
    signatures = context.inputs["signatures"]
    with session(context) as spark:
        profile = write_table(
            spark,
            context,
            "documents",
            _decide(spark, context),
            (*FILE, "status", "rule", "split"),
            ("length",),
        )
    context.store.remove(context.place("scratch"))
    check_balance("dedup", signatures.output.rows, profile.rows)
    splits = {split: count for (split,), count in sorted(profile.counts_by("split").items()) if split}
    output = profile.output()
    output = output.model_copy(update={"facts": output.facts | {"splits": splits}})
    return {"documents": context.artifact("documents", output)}


def _decide(spark: Any, context: Context) -> Any:
    F = functions()  # noqa: N806
    config: DedupConfig = context.config
    columns = ("id", "source", "path", "length", "url", "content")
    documents = read_documents(spark, context.inputs["signatures"], *columns)
    order = F.array_position(F.array(*map(F.lit, [*config.prefer])).cast("array<string>"), F.col("source"))
    last = F.lit(len(config.prefer) + 1)
    documents = documents.withColumn("priority", F.when(order > 0, order).otherwise(last).cast("int"))
    documents = _by_url(documents) if config.url else documents.withColumn("held", F.col("content"))
    # `held` is the content that a document counts with: its own, or that of the URL's survivor.
    best = (
        documents.where("held = content")
        .groupBy("content")
        .agg(F.min(F.struct("priority", "id")).alias("best"))
        .select("content", "best.*")
    )
    best = scratch_table(spark, context, "best", best)
    near = _near(spark, context, best)
    survivors = best.selectExpr("content AS survivor", "id AS duplicate_of")
    joined = (
        documents.withColumnRenamed("content", "own")
        .join(best.selectExpr("content AS held", "id AS best"), "held")
        .join(near.withColumnRenamed("content", "held"), "held", "left")
        .withColumn("survivor", F.coalesce("survivor", "held"))
        .join(survivors, "survivor")
    )
    duplicate = F.col("id") != F.col("duplicate_of")
    by_url, exact = F.col("own") != F.col("held"), F.col("id") != F.col("best")
    held_out = F.lit(int(config.held_out * 16**13))
    draw = F.conv(F.substring("own", 1, 13), 16, 10).cast("bigint")
    return joined.select(
        *("id", "source", "path", "length"),
        F.col("own").alias("content"),
        F.when(duplicate, "duplicate").otherwise("kept").alias("status"),
        F.when(duplicate & by_url, "dedup.url")
        .when(duplicate & exact, "dedup.exact")
        .when(duplicate, "dedup.near")
        .alias("rule"),
        F.when(duplicate, F.col("duplicate_of")).alias("duplicate_of"),
        F.when(duplicate & ~by_url, F.coalesce("jaccard", F.lit(1.0))).alias("jaccard"),
        F.when(~duplicate & (draw < held_out), "held_out").when(~duplicate, "train").alias("split"),
    )


def _by_url(documents: Any) -> Any:
    """Adds `held`: the content of the least document of the same URL; its own where it has none."""
    F = functions()  # noqa: N806
    least = (
        documents.where("url IS NOT NULL")
        .groupBy("url")
        .agg(F.min(F.struct("priority", "content", "id")).alias("least"))
        .select("url", F.col("least.content").alias("least"))
    )
    return (
        documents.join(least, "url", "left").withColumn("held", F.coalesce("least", "content")).drop("least")
    )


def _near(spark: Any, context: Context, best: Any) -> Any:
    """(content, survivor, jaccard) of each content that is a near duplicate of a better one.

    Args:
        spark: session.
        context: the attempt.
        best: (content, priority, id) of each content that counts.
    """
    F = functions()  # noqa: N806
    pairs = context.inputs["pairs"]
    jaccards = read_table(spark, pairs).select("a", "b", "jaccard").distinct()
    close = jaccards.where(F.col("jaccard") >= context.config.threshold).select("a", "b")
    if context.config.url:
        close = close.join(best.selectExpr("content AS a"), "a", "left_semi")
        close = close.join(best.selectExpr("content AS b"), "b", "left_semi").select("a", "b")
    stars = components(spark, context, close)
    members = union(
        [stars.selectExpr("node AS content", "least"), stars.selectExpr("least AS content", "least")]
    )
    members = members.distinct()
    survivors = (
        members.join(best, "content")
        .groupBy("least")
        .agg(F.min(F.struct("priority", "content")).alias("survivor"))
        .select("least", "survivor.content")
        .withColumnRenamed("content", "survivor")
    )
    near = members.join(survivors, "least").where("content <> survivor").select("content", "survivor")
    near = near.withColumn("a", F.least("content", "survivor")).withColumn(
        "b", F.greatest("content", "survivor")
    )
    near = scratch_table(spark, context, "near", near)
    unknown = near.select("a", "b").join(jaccards, ["a", "b"], "left_anti")
    signatures, documents = context.inputs["signatures"], context.inputs["documents"]
    found = verified(spark, context, unknown, signatures, documents, pairs.output.facts["ngram"])
    return near.join(union([jaccards, found]), ["a", "b"]).select("content", "survivor", "jaccard")
