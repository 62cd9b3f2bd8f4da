"""A document's whole way through the stages, from what their tables and shards say; read without Spark.

Each table was written once, by one commit: version 0 of its Delta log names all of its Parquet files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bloomery.artifacts.lineage import trace
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.run import MissingInputError, artifact
from bloomery.artifacts.store import Store
from bloomery.errors import BloomeryError
from bloomery.shards.dataset import Dataset
from bloomery.shards.lookup import locate
from spark_jobs.parts import tables_of
from spark_jobs.tables import logged_files

TABLES = {
    "ingest": "documents",
    "measure": "documents",
    "clean": "documents",
    "dedup": "documents",
    "decontaminate": "documents",
}
"""Stage -> its output that holds a row a document, in the order of the way."""
LAST = ("decontaminate", "kept")
"""Of a document that stands in a shard."""
LONG = 200


class UnknownDocumentError(BloomeryError):
    """No document goes by this name."""


class Step(NamedTuple):
    """What one stage says of a document; values that are null are left out, long texts are cut."""

    stage: str
    document: str
    row: dict[str, Any]


def explain(store: Store, manifests: Mapping[str, str], document: str) -> list[Step]:
    """Every stage's row of each document that goes by `document`.

    Args:
        store: where the tables stand.
        manifests: stage -> digest of its manifest; stages that are absent are left out.
        document: an id (or its first 8 digits and more), the publisher's id, a URL, a path in its source,
            or source/path.

    Raises:
        UnknownDocumentError: `ingest` has read no such document.
        MissingInputError: no manifest of `ingest` is given, or a table is gone.
    """
    if "ingest" not in manifests:
        raise MissingInputError("nothing was ingested yet", "run the corpus first")
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="bloomery-explain-") as cache:
        tables = {
            stage: artifact(store, manifests[stage], output)
            for stage, output in TABLES.items()
            if stage in manifests
        }
        names = _names(tables["ingest"], document, Path(cache))
        for stage, table in tables.items():
            rows = _rows_of(table, names, Path(cache))
            _name_survivors(rows, tables["ingest"], Path(cache))
            steps += [Step(stage, row["id"], _short(row)) for row in rows]
        kept = [step.document for step in steps if (step.stage, step.row["status"]) == LAST]
        if "shard" in manifests and kept:
            steps += _in_shards(artifact(store, manifests["shard"], "shards"), kept, Path(cache))
    return sorted(steps, key=lambda step: names.index(step.document))


def ids_of(store: Store, manifest: str, document: str) -> list[str]:
    """Ids of the records that go by `document`, as in `explain`, among those that a manifest was made from.

    Raises:
        UnknownDocumentError: none of them does.
    """
    ingest = next(node.digest for node in trace(store, manifest).nodes() if node.stage == "ingest")
    with tempfile.TemporaryDirectory(prefix="bloomery-explain-") as cache:
        return _names(artifact(store, ingest, TABLES["ingest"]), document, Path(cache))


def _in_shards(shards: Artifact, names: list[str], cache: Path) -> list[Step]:
    dataset = Dataset.fetch(shards, cache)
    found = locate(dataset, names, lambda name: shards.store.fetch(f"{shards.place}/{name}", cache))
    return [Step("shard", place.id, place._asdict() | {"origin": place.origin._asdict()}) for place in found]


def _name_survivors(rows: list[dict[str, Any]], ingested: Artifact, cache: Path) -> None:
    """Adds `survivor` to rows that are duplicates: where the document that stands for them came from."""
    wanted = [row["duplicate_of"] for row in rows if row.get("duplicate_of")]
    places = {
        found["id"]: ", ".join(filter(None, (f"{found['source']}/{found['path']}", found["url"])))
        for found in (_rows_of(ingested, wanted, cache) if wanted else [])
    }
    for row in rows:
        if row.get("duplicate_of"):
            row["survivor"] = places.get(row["duplicate_of"])


def read_rows(table: Artifact, cache: Path) -> list[dict[str, Any]]:
    """Every row of a table; for small ones."""
    return [
        row
        for part, without in tables_of(table)
        for path in table_files(part, cache)
        for row in _parquet(path).read().to_pylist()
        if not without or (row["source"], row["path"]) not in without
    ]


def _names(table: Artifact, document: str, cache: Path) -> list[str]:
    from pyarrow import dataset

    columns = ["id", "source", "path", "url", "external_id"]
    field = dataset.field
    hit = (field("path") == document) | (field("url") == document) | (field("external_id") == document)
    source, _, path = document.partition("/")
    hit |= (field("source") == source) & (field("path") == path)
    if len(document) >= 8:
        import pyarrow.compute as pc

        hit |= pc.starts_with(field("id"), document)
    found = sorted({row["id"] for row in _where(table, hit, cache, columns)})
    if not found:
        raise UnknownDocumentError(
            f"no document has the id, URL or path {document!r}",
            "give an id (8 digits or more), the publisher's id, a URL as the source has it, or SOURCE/PATH",
        )
    return found


def _rows_of(table: Artifact, names: list[str], cache: Path) -> list[dict[str, Any]]:
    from pyarrow import dataset

    return _where(table, dataset.field("id").isin(names), cache)


def _where(
    table: Artifact, wanted: Any, cache: Path, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of a table or collection that a filter wants, without those of files that do not count."""
    from pyarrow import dataset

    found: list[dict[str, Any]] = []
    for part, without in tables_of(table):
        files = [str(path) for path in table_files(part, cache)]
        if files:
            read = dataset.dataset(files, format="parquet").to_table(filter=wanted, columns=columns)
            found += [row for row in read.to_pylist() if (row.get("source"), row.get("path")) not in without]
    return found


def table_files(table: Artifact, cache: Path) -> list[Path]:
    """The Parquet files of one table, on this machine."""
    folder = table.local(cache)
    return [folder / file for file in logged_files(table)[1]]


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    cut = {
        name: f"{value[:LONG]}... ({len(value)} characters)"
        if isinstance(value, str) and len(value) > LONG
        else value
        for name, value in row.items()
    }
    return {name: value for name, value in cut.items() if value is not None}
