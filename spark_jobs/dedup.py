"""Dedup: which documents say the same, and which of them survives. Decisions only: texts stay where they are.

    one URL (if asked for)         -> one document
    one content                    -> one document
    pairs at or above threshold    -> components of contents -> one content

The survivor is the least by (place of its source in `prefer`, content, id): a pure function of the set of
documents, so neither partitions nor the order of snapshots change it. A new document may unseat an earlier
survivor; the new table says so, the old one stays.

Pieces of survivors that stand elsewhere, too, are found where asked for (`repeats`); `decontaminate`, which
writes the texts, cuts them out.

Row: id, source, path, length, content, status (kept | duplicate), rule, duplicate_of, jaccard, split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import DedupConfig
from spark_jobs.components import components
from spark_jobs.engine import functions, session, windows
from spark_jobs.pairs import PAIR, remember
from spark_jobs.parts import read_documents
from spark_jobs.repeats import find_repeats
from spark_jobs.tables import FILE, Profile, check_files, read_table, write_table

EDGES = 500_000
"""Edges of the graph of near duplicates that one task takes in a second or two."""


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `dedup`.

    Raises:
        BalanceError: a document of a file was lost or doubled.
    """
    remember(context)
    with session(context) as spark:
        profile = write_table(
            spark,
            context,
            "documents",
            _decide(spark, context),
            (*FILE, "status", "rule", "split"),
            ("length",),
        )
        cuts = _repeats(spark, context)
    context.store.remove(context.place("scratch"))
    check_files("dedup", Profile.from_bytes(context.inputs["signed"].read()), profile)
    splits = {split: count for (split,), count in sorted(profile.counts_by("split").items()) if split}
    output = profile.output()
    output = output.model_copy(update={"facts": output.facts | {"splits": splits}})
    return {
        "documents": context.artifact("documents", output),
        "profile": context.blob("profile", profile.to_bytes()),
        "cuts": cuts,
    }


def _repeats(spark: Any, context: Context) -> Artifact:
    """What is to be cut out of survivors: a table where it was asked for, else nothing."""
    config = context.config.repeats
    if not (config.lines or config.paragraphs or config.words):
        return context.blob("cuts", b"", rows=0)
    decided = read_table(spark, context.artifact("documents", Output(digest="")))
    survivors = decided.where("status = 'kept'").select("id", "content")
    texts = read_documents(spark, context.inputs["documents"], "id", "text").join(survivors, "id")
    found = find_repeats(texts.select("id", "content", "text"), config)
    profile = write_table(spark, context, "cuts", found, ("rule",), ())
    facts = {"rules": {rule: count for (rule,), count in sorted(profile.counts_by("rule").items())}}
    return context.artifact("cuts", Output(digest=profile.digest, rows=profile.rows, facts=facts))


def _decide(spark: Any, context: Context) -> Any:
    F, window = functions(), windows()  # noqa: N806
    config: DedupConfig = context.config
    columns = ("id", "source", "path", "length", "url", "content")
    documents = read_documents(spark, context.inputs["signatures"], *columns)
    order = F.array_position(F.array(*map(F.lit, config.prefer)).cast("array<string>"), F.col("source"))
    last = F.lit(len(config.prefer) + 1)
    documents = documents.withColumn("priority", F.when(order > 0, order).otherwise(last).cast("int"))
    # `held` is the content that a document counts with: its own, or that of the survivor of its URL.
    documents = documents.withColumn("held", F.col("content"))
    if config.url:
        rank = F.struct("priority", "content", "id")
        least = F.min(rank).over(window.partitionBy("url")).getField("content")
        documents = documents.withColumn("held", F.when(F.isnull("url"), F.col("content")).otherwise(least))
    near = _near(spark, context, documents.where("held = content"))
    own = F.col("held") == F.col("content")
    first = F.min(F.when(own, F.struct("priority", "id"))).over(window.partitionBy("held")).getField("id")
    survivor = F.coalesce("survivor", "first")
    duplicate, exact = F.col("id") != survivor, F.col("id") != F.col("first")
    joined = documents.withColumn("first", first).join(near, "held", "left")
    held_out = F.lit(int(config.held_out * 16**13))
    draw = F.conv(F.substring("content", 1, 13), 16, 10).cast("bigint")
    return joined.select(
        *("id", "source", "path", "length", "content"),
        F.when(duplicate, "duplicate").otherwise("kept").alias("status"),
        F.when(duplicate & ~own, "dedup.url")
        .when(duplicate & exact, "dedup.exact")
        .when(duplicate, "dedup.near")
        .alias("rule"),
        F.when(duplicate, survivor).alias("duplicate_of"),
        F.when(duplicate & own, F.coalesce("jaccard", F.lit(1.0))).alias("jaccard"),
        F.when(~duplicate & (draw < held_out), "held_out").when(~duplicate, "train").alias("split"),
    )


def _near(spark: Any, context: Context, documents: Any) -> Any:
    """(held, survivor, jaccard): each content that is a near duplicate of a better one, and that one's
    document.

    `jaccard` is that with the survivor's content, or, where the two share no band, the greatest of those that
    link it to the component.

    Args:
        spark: session.
        context: the attempt.
        documents: (priority, content, id) of each document that counts with its own content.
    """
    F = functions()  # noqa: N806
    close = read_table(spark, context.inputs["pairs"]).where(F.col("jaccard") >= context.config.threshold)
    close = close.select(*PAIR)
    if context.config.url:
        contents = documents.select("content").distinct()
        for end in ("a", "b"):
            close = close.join(contents.withColumnRenamed("content", end), end, "left_semi")
    tasks = 1 + (context.inputs["pairs"].output.rows or 0) // EDGES
    stars = components(spark, context, close.select("a", "b"), tasks)
    members = stars.selectExpr("explode(array(node, least)) AS content", "least").distinct()
    survivors = (
        documents.join(members, "content")
        .groupBy("least")
        .agg(F.min(F.struct("priority", "content", "id")).alias("survivor"))
        .selectExpr("least", "survivor.content AS best", "survivor.id AS survivor")
    )
    ends = "inline(array(struct(a AS content, b AS other), struct(b AS content, a AS other)))"
    links = close.selectExpr(ends, "jaccard")
    near = (
        members.join(survivors, "least")
        .where("content <> best")
        .join(links, "content")
        .groupBy("content", "survivor")
        .agg(F.max(F.struct(F.expr("other = best"), "jaccard")).alias("link"))
    )
    return near.selectExpr("content AS held", "survivor", "link.jaccard")
