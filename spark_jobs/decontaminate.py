"""Decontaminate: the surviving documents with their texts, without what an eval set holds.

    clean texts x decisions of dedup -> survivors, repeats cut out -> eval items in each -> documents, hits

documents   id, source, path, member, offset, length, url, language, content, split, text, bytes,
            status (kept | contaminated | duplicate), rule, item (the first one found), cut (characters
            taken out)
hits        one row an eval item and document: item, id, start, end, answered, action; nothing where there
            are no eval sets
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import DecontaminateConfig
from spark_jobs.contamination import Item, findable, index_of
from spark_jobs.engine import functions, session
from spark_jobs.parts import read_documents
from spark_jobs.repeats import cut
from spark_jobs.tables import FILE, Profile, check_files, read_table, record_batch, write_table

READ = (
    *("id", "source", "path", "member", "offset", "length", "url", "language", "content", "split"),
    *("places", "text"),
)
SCHEMA = (
    "id string, source string, path string, member bigint, offset bigint, length bigint, url string, "
    "language string, content string, split string, text string, bytes bigint, status string, rule string, "
    "item string, cut bigint, hits array<string>"
)
UNTOUCHED = (
    *READ[:-2],
    "text",
    *("cast(octet_length(text) AS bigint) AS bytes", "'kept' AS status", "cast(null AS string) AS rule"),
    *("cast(null AS string) AS item", "0L AS cut", "cast(array() AS array<string>) AS hits"),
)
"""SCHEMA of a document of which nothing is taken."""
RULE = "contamination"
REPEATS = "dedup.repeats"
"""Of a document that stands whole in others, piece by piece."""


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `decontaminate`.

    Raises:
        BalanceError: a document of a file was lost or doubled.
    """
    items = context.inputs["evals"].read()
    wanted = [Item(*row) for row in json.loads(items)]
    _say_findable(context, wanted)
    with session(context) as spark:
        judged = _judged(spark, context, items if wanted else None)
        group = (*FILE, "status", "rule", "split", "language")
        profile = write_table(spark, context, "documents", judged, group, ("bytes", "length"))
        hits = _hits(spark, context) if wanted else context.blob("hits", b"", rows=0)
    check_files("decontaminate", Profile.from_bytes(context.inputs["decided"].read()).kept(), profile)
    output = profile.output()
    splits = _documents_by(profile, "split")
    facts = output.facts | {"splits": splits, "languages": _documents_by(profile, "language")}
    documents = context.artifact("documents", output.model_copy(update={"facts": facts}))
    return {"documents": documents, "hits": hits}


def _judged(spark: Any, context: Context, items: bytes | None) -> Any:
    """Surviving documents as SCHEMA has them; `items` are None where no eval set was given."""
    F, cuts = functions(), context.inputs["cuts"]  # noqa: N806
    decided = read_table(spark, context.inputs["decisions"]).where("status = 'kept'")
    survivors = decided.select("id", "content", "split")
    texts = read_documents(spark, context.inputs["documents"]).where("status = 'kept'")
    if not (cuts.output.rows or items):  # then no text need leave the JVM
        return texts.drop("content", "split", "bytes").join(survivors, "id").selectExpr(*UNTOUCHED)
    if cuts.output.rows:
        places = F.collect_list(F.struct("start", "end")).alias("places")
        survivors = survivors.join(read_table(spark, cuts).groupBy("id").agg(places), "id", "left")
    else:
        survivors = survivors.selectExpr(
            "*", "cast(null AS array<struct<start: bigint, end: bigint>>) AS places"
        )
    rows = texts.join(survivors, "id").select(*READ)
    return rows.mapInArrow(partial(_judge, items or b"[]", context.config), SCHEMA)


def _hits(spark: Any, context: Context) -> Artifact:
    """The table of hits, of the documents that are written."""
    written = read_table(spark, context.artifact("documents", Output(digest="")))
    found = written.selectExpr("id", "status", "explode(hits) AS hit").selectExpr(
        "id", "status", "from_json(hit, 'array<string>') AS parts"
    )
    columns = ("parts[0] AS item", "id", "int(parts[1]) AS start", "int(parts[2]) AS end")
    action = "CASE status WHEN 'kept' THEN 'cut' ELSE 'dropped' END AS action"
    rows = found.selectExpr(*columns, "parts[3] = 'true' AS answered", action)
    hits = write_table(spark, context, "hits", rows, ("item",), ())
    items = len(hits.counts_by("item"))
    return context.artifact("hits", Output(digest=hits.digest, rows=hits.rows, facts={"items": items}))


def _say_findable(context: Context, known: list[Item]) -> None:
    found = sum(findable(item, context.config) for item in known)
    if known:
        rest = (
            f", {len(known) - found} are too short to be told from innocent text"
            if found < len(known)
            else ""
        )
        context.log(f"looking for {found} eval items{rest}")


def _documents_by(profile: Any, column: str) -> dict[str, int]:
    counts = profile.counts_by("status", column)
    return {value: count for (status, value), count in sorted(counts.items()) if status == "kept" and value}


def _judge(items: bytes, config: DecontaminateConfig, batches: Iterator[Any]) -> Iterator[Any]:
    index = index_of(items, config.model_dump_json())
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            places = [(place["start"], place["end"]) for place in row["places"] or ()]
            text = cut(row["text"], places)
            hits = index.hits(text)
            left = cut(text, [(hit.start, hit.end) for hit in hits]) if config.action == "cut" else text
            fate: tuple[str, str | None, str | None]
            kept = None
            if hits and (config.action == "drop" or not left.strip()):
                fate = ("contaminated", RULE, hits[0].item)
            elif places and not left.strip():
                fate = ("duplicate", REPEATS, None)
            else:
                fate, kept = ("kept", None, None), left
            about = [row[name] for name in READ[:-2]]
            listed = [
                json.dumps([hit.item, str(hit.start), str(hit.end), str(hit.answered).lower()])
                for hit in hits
            ]
            taken = len(row["text"]) - len(left)
            rows.append((*about, kept, len(left.encode()), *fate, taken, listed))
        yield record_batch(rows, SCHEMA)
