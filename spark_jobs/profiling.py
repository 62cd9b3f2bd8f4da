"""Profile: what the gate judges a snapshot by and the report shows, in two Spark jobs.

    ledger x measure      -> fates, sources, languages, nulls, histograms of signals, least ids per rule   (1)
    surviving texts       -> bytes, words, personal data, eval items, ids and contents that repeat         (2)
    texts of those ids    -> samples

Nothing of a text is taken from what an earlier stage says: it is measured anew. The profile is one canonical
JSON file, the same for any partitioning, and small whatever the snapshot's size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from operator import add
from typing import Any, Self

import numpy as np

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.base import Config
from bloomery.config.corpus import DecontaminateConfig
from spark_jobs.cleaning.signals import SIGNALS, column
from spark_jobs.engine import functions, session
from spark_jobs.parts import read_documents, union
from spark_jobs.statistics import Statistics, keys, of_records, of_texts, words_of
from spark_jobs.tables import Profile, joined, read_table, record_batch

NULLABLE = ("url", "date", "licence", "language")
NUMERIC = ("language_score", *map(column, SIGNALS))
HEAD = 400
"""Characters of a sample's text."""
STANDARD = DecontaminateConfig()
"""What counts as holding an item, whatever `decontaminate` was told to look for."""
TALLY = "kind string, key bigint, part string"
"""What a worker says of texts: `part`, statistics or a sample; `id` and `content`, a key of each text."""


class Fate(Config):
    """Records that share a fate."""

    stage: str
    """That did not keep them; empty for the kept."""
    status: str
    rule: str
    records: int
    bytes: int
    """Decoded bytes of their files."""


class Origin(Config):
    """What a source gave."""

    records: int
    documents: int
    """Survivors."""
    bytes: int
    """Of their texts."""


class Sample(Config):
    """A record, as the report shows it."""

    rule: str
    """That took it, or its status."""
    id: str
    text: str | None


class CorpusProfile(Config):
    """The profile of a snapshot."""

    documents: int
    """Survivors whose texts were measured."""
    size: int
    """Bytes of their texts."""
    words: int
    empty: int
    mojibake: int
    repeated_ids: int
    repeated_contents: int
    pii: Mapping[str, int]
    """Survivors with personal data of each kind; "" for any."""
    items: Mapping[str, int]
    """Eval item -> survivors that hold it."""
    contaminated: int
    fates: tuple[Fate, ...]
    sources: Mapping[str, Origin]
    languages: Mapping[str, int]
    splits: Mapping[str, int]
    nulls: Mapping[str, int]
    """Column -> survivors without it."""
    histograms: Mapping[str, tuple[tuple[int, int], ...]]
    """Column -> (bin, survivors), as spark_jobs.statistics has them."""
    samples: tuple[Sample, ...]

    @property
    def records(self) -> int:
        """Records read."""
        return sum(fate.records for fate in self.fates)

    def with_status(self, *statuses: str) -> int:
        """Records with one of some statuses."""
        return sum(fate.records for fate in self.fates if fate.status in statuses)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical(self.model_dump(mode="json"))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote."""
        return cls.model_validate_json(data)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `profile`."""
    account = Profile.from_bytes(context.inputs["account"].read())
    with session(context) as spark:
        records = _records(spark, context)
        texts, repeated, samples = _texts(spark, context, records.least)
    found = assemble(account, records, texts, repeated, samples)
    facts = {"documents": found.documents, "records": found.records}
    return {"profile": context.blob("profile", found.to_bytes(), facts=facts)}


def assemble(
    account: Profile,
    records: Statistics,
    texts: Statistics,
    repeated: Mapping[str, int],
    samples: Mapping[str, str | None],
) -> CorpusProfile:
    """The profile of what was counted.

    Args:
        account: of the ledger.
        records: of its records.
        texts: of the survivors' texts.
        repeated: "id" and "content" -> survivors beyond the first with the same.
        samples: id -> beginning of its text.
    """
    fate = ("stage", "status", "rule")
    sizes = account.sums_by("length", *fate)
    read, totals, spoken = account.counts_by("source"), texts.of("texts"), texts.of("bytes")
    kept = records.of("source")
    histograms: dict[str, list[tuple[int, int]]] = {}
    for (name, bin_), count in sorted((records.histograms + texts.histograms).items()):
        histograms.setdefault(name, []).append((bin_, count))
    return CorpusProfile(
        documents=totals.get("documents", 0),
        size=totals.get("bytes", 0),
        words=totals.get("words", 0),
        empty=totals.get("empty", 0),
        mojibake=totals.get("mojibake", 0),
        repeated_ids=repeated.get("id", 0),
        repeated_contents=repeated.get("content", 0),
        pii=texts.of("pii") | {"": totals.get("pii", 0)},
        items=texts.of("item"),
        contaminated=totals.get("contaminated", 0),
        fates=tuple(
            Fate(stage=key[0], status=key[1], rule=key[2], records=count, bytes=sizes[key])
            for key, count in sorted(account.counts_by(*fate).items())
        ),
        sources={
            name: Origin(records=count, documents=kept.get(name, 0), bytes=spoken.get(name, 0))
            for (name,), count in sorted(read.items())
        },
        languages=records.of("language"),
        splits=records.of("split"),
        nulls=records.of("nulls"),
        histograms={name: tuple(found) for name, found in histograms.items()},
        samples=tuple(
            Sample(rule=rule, id=name, text=samples.get(name))
            for rule, names in sorted(records.least.items())
            for name in names
        ),
    )


def _records(spark: Any, context: Context) -> Statistics:
    """Job 1: the ledger's fate of each record beside what `measure` says of it."""
    fates = read_table(spark, context.inputs["ledger"]).select("id", "source", "status", "rule", "split")
    measured = read_documents(spark, context.inputs["measured"], "id", *NULLABLE, *NUMERIC)
    joined = fates.join(measured.hint("shuffle_hash"), "id")
    rows = joined.mapInArrow(partial(_count, _count_records), "part string").collect()
    return reduce(add, (Statistics.from_json(row.part) for row in rows), Statistics())


def _texts(
    spark: Any, context: Context, least: Mapping[str, list[str]]
) -> tuple[Statistics, dict[str, int], dict[str, str | None]]:
    """Job 2: statistics of the survivors' texts, ids and contents that repeat, and the samples' texts."""
    F = functions()  # noqa: N806
    survivors = read_table(spark, context.inputs["documents"]).where("status = 'kept'")
    ids = sorted({name for names in least.values() for name in names})
    measured = read_documents(spark, context.inputs["measured"], "id", "text")
    sampled = measured.where(F.col("id").isin(ids)).selectExpr("id", f"substring(text, 1, {HEAD}) AS text")
    items = context.inputs["evals"].read()
    told = union(
        [
            survivors.select("id", "source", "text").mapInArrow(partial(_tally, items), TALLY),
            sampled.selectExpr("'sample' AS kind", "0L AS key", "to_json(struct(id, text)) AS part"),
        ]
    )
    counted = told.groupBy("kind", "key", "part").count()
    rows = counted.groupBy("kind", "part").agg(F.sum(F.col("count") - 1).alias("again")).collect()
    texts, repeated, samples = Statistics(), {}, {}
    for row in rows:
        if row.kind == "part":  # two batches may say the same
            texts = reduce(add, [Statistics.from_json(row.part)] * (row.again + 1), texts)
        elif row.kind == "sample":
            sample = json.loads(row.part)
            samples[sample["id"]] = sample.get("text")
        else:
            repeated[row.kind] = row.again
    return texts, repeated, samples


def _count(measure: Callable[[Any], Statistics], batches: Iterator[Any]) -> Iterator[Any]:
    """The statistics of a partition, as one row."""
    found = sum((measure(rows) for rows in joined(batches)), Statistics())
    yield record_batch([(found.to_json(),)], "part string")


def _count_records(rows: Any) -> Statistics:
    return of_records(rows, NUMERIC, NULLABLE)


def _tally(items: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """Keys of each text, then the statistics of the partition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from spark_jobs.contamination import index_of

    index, found = index_of(items, STANDARD.model_dump_json()), Statistics()
    for rows in joined(batches):
        words = words_of(rows["text"])
        found += of_texts(rows, words, index)
        # Contents are alike where they differ only in case and white space.
        for kind, values in (("id", rows["id"]), ("content", pc.binary_join(words, " "))):
            hashes = pa.array(keys(values).view(np.int64))
            columns = [pa.repeat(kind, len(rows)), hashes, pa.nulls(len(rows), pa.string())]
            yield pa.RecordBatch.from_arrays(columns, ["kind", "key", "part"])
    yield record_batch([("part", 0, found.to_json())], TALLY)
