"""Ingest on the engine: huge files are read in splits, by several tasks, and no byte of the table changes."""

from __future__ import annotations

import json

from bloomery.artifacts.store import LocalStore
from spark_jobs.readers.records import Split
from spark_jobs.readers.splits import plan
from tests.spark_jobs.conftest import Pipeline
from tests.spark_jobs.test_bad_input import PAGES, gz, page, table
from tests.spark_jobs.test_readers import lines


def test_splits_change_no_byte_of_the_table(pipeline, tmp_path, monkeypatch):
    rows = lines(400)
    texts = [json.loads(row)["text"] for row in rows]
    inner = page("x", "application/gzip", b"".join(gz(found) for found in PAGES * 50))
    files = {
        "plain.jsonl": b"".join(rows),
        "members.jsonl.gz": b"".join(map(gz, rows)),
        "one.jsonl.gz": gz(b"".join(rows)),
        "pages.warc.gz": b"".join(gz(page(text)) for text in texts),
        "inner.warc": inner + b"".join(PAGES * 50),
        "rows.parquet": table(*([text] * 3 for text in texts[:50])),
    }
    for name, data in files.items():
        (pipeline.corpus / name).write_bytes(data)
    first = pipeline.run("ingest")
    assert len(pipeline.rows("ingest")) == 4 * 400 + 1 + 150 + 150
    planned: list[Split] = []

    def planning(*arguments):
        planned.extend(plan(*arguments))
        return planned

    monkeypatch.setattr("spark_jobs.ingest.TASK_BYTES", 10_000)
    monkeypatch.setattr("spark_jobs.ingest.plan", planning)
    other = Pipeline(LocalStore(tmp_path / "other"), pipeline.corpus, pipeline.execution)
    assert other.run("ingest", partitions=20).digest == first.digest
    splits = {name: sum(split.file.path == name for split in planned) for name in files}
    assert splits.pop("one.jsonl.gz") == 1 and min(splits.values()) > 1, splits
