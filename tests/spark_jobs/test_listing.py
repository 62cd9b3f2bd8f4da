"""Listing: folders, globs, objects, Delta tables, and what cannot be read, which is listed, too."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from bloomery.config.sources import IngestConfig, Source
from spark_jobs.readers.fields import Fields
from spark_jobs.readers.listing import UNREADABLE, SourceError, list_source
from spark_jobs.readers.records import Split, read_records
from tests.spark_jobs.files import fates
from tests.spark_jobs.test_bad_input import line


def listed(uri, kind="auto"):
    return list_source(Source(name="s", uri=str(uri), format=kind))


def read(file):
    return list(read_records(Split(file), Fields(), IngestConfig()))


def test_names_of_any_bytes_lead_to_their_files(tmp_path):
    names = [
        b"a b.txt",
        b"a\nb.txt",
        "naïve.txt".encode(),
        b"\xff.txt",
        b"%FF.txt",
        b"100%.txt",
        b"d\xfe/\xff%.txt",
    ]
    (tmp_path / os.fsdecode(b"d\xfe")).mkdir()
    for name in names:
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_bytes(
            name.replace(b"\xff", b"?").replace(b"\xfe", b"?")
        )
    files = listed(tmp_path)
    expected = ["%25FF.txt", "%FF.txt", "100%25.txt", "a\nb.txt", "a b.txt", "d%FE/%FF%25.txt", "naïve.txt"]
    assert [file.path for file in files] == expected
    texts = [fates(read(file))[0] for file in files]
    assert texts == ["%FF.txt", "?.txt", "100%.txt", "a\nb.txt", "a b.txt", "d?/?%.txt", "naïve.txt"]


def test_what_cannot_be_read_is_listed_with_the_reason(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.txt")
    files = {file.path: file for file in listed(tmp_path)}
    reasons = {
        path: file.version.removeprefix(UNREADABLE) for path, file in files.items() if file.path != "a.txt"
    }
    assert reasons == {
        "dangling.txt": "No such file or directory",
        "loop.txt": "Too many levels of symbolic links",
        "d/up": "a link to a folder that it stands in",
        "pipe.txt": "it is no regular file",
    }
    for path, file in files.items():
        assert fates(read(file)) == (["a"] if path == "a.txt" else ["!file.unreadable"])


def test_linked_folders_are_followed(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("a")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    (file,) = listed(tmp_path / "root")
    assert file.path == "link/a.txt" and fates(read(file)) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_rights(tmp_path):
    for name in ("a.txt", "d/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")
    (tmp_path / "a.txt").chmod(0)
    (tmp_path / "d").chmod(0)
    files = listed(tmp_path)
    (tmp_path / "d").chmod(0o700)
    assert [(file.path, file.version) for file in files] == [
        ("a.txt", f"{UNREADABLE}Permission denied"),
        ("d", f"{UNREADABLE}Permission denied"),
    ]


@pytest.fixture
def bucket(monkeypatch):
    moto, boto3 = pytest.importorskip("moto"), pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        for key in (
            "raw/b.jsonl",
            "raw/sub/a.txt",
            "raw/sub/deep/a.jsonl",
            "raw/.hidden/a.txt",
            "other/c.txt",
        ):
            client.put_object(Bucket="bucket", Key=key, Body=line("x"))
        yield client


def test_objects_below_a_prefix_or_of_a_glob(bucket):
    cases = {
        "raw": ["b.jsonl", "sub/a.txt", "sub/deep/a.jsonl"],
        "raw/*": ["b.jsonl"],
        "raw/**/*.jsonl": ["b.jsonl", "sub/deep/a.jsonl"],
        "raw/*/a.txt": ["sub/a.txt"],
        "*/[bc].*": ["other/c.txt", "raw/b.jsonl"],
        "raw/b.jsonl": ["b.jsonl"],
    }
    assert {uri: [file.path for file in listed(f"s3://bucket/{uri}")] for uri in cases} == cases
    with pytest.raises(SourceError, match="cannot be listed"):
        listed("s3://absent/raw")


def test_objects_are_read_in_ranges_and_by_version(bucket, monkeypatch):
    monkeypatch.setattr("spark_jobs.readers.storage.READ", 1000)
    rows = [line(f"{number}") for number in range(1000)]
    bucket.put_object(Bucket="bucket", Key="raw/b.jsonl", Body=b"".join(rows))
    file = listed("s3://bucket/raw/b.jsonl")[0]
    assert fates(read(file)) == [f"{number}" for number in range(1000)]
    first = next(records := read_records(Split(file), Fields(), IngestConfig()))
    bucket.put_object(Bucket="bucket", Key="raw/b.jsonl", Body=b"".join(rows).replace(b"9", b"8"))
    rest = list(records)
    assert first.document.text == b"0" and sum(record.rule == "file.changed" for record in rest) <= 1
    assert fates(read(file)) == ["!file.changed"]
    bucket.delete_object(Bucket="bucket", Key="raw/b.jsonl")
    assert fates(read(file)) == ["!file.changed"]


def test_a_delta_table_is_read_by_its_log(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    root = tmp_path / "table"
    rows = pa.table({"text": ["a", "b", "c"], "id": [1, 2, 3], "day": ["x", "x", "y z"]})
    deltalake.write_deltalake(root, rows, partition_by=["day"])
    deltalake.write_deltalake(root, pa.table({"text": ["d"], "id": [4], "day": ["x"]}), mode="append")
    deltalake.DeltaTable(root).delete("id = 2")
    files = listed(root, "delta")
    assert len(list(root.rglob("*.parquet"))) > len(files)
    documents = [record.document for file in files for record in read(file)]
    assert sorted((found.text, found.external_id, found.metadata) for found in documents) == [
        (b"a", "1", '{"day":"x"}'),
        (b"c", "3", '{"day":"y z"}'),
        (b"d", "4", '{"day":"x"}'),
    ]
    with pytest.raises(SourceError, match="is a Delta table"):
        listed(root)
    with pytest.raises(SourceError, match="cannot be read as a Delta table"):
        listed(tmp_path, "delta")


def test_a_delta_file_with_a_deletion_vector_is_not_read(tmp_path, spark_engine):
    from pyspark.sql.connect.session import SparkSession

    spark = SparkSession.builder.remote(spark_engine.url).create()
    root = tmp_path / "table"
    (spark.range(10, numPartitions=1).selectExpr("id", "string(id) AS text").write.format("delta")
        .option("delta.enableDeletionVectors", "true").save(str(root)))  # fmt: skip
    spark.sql(f"DELETE FROM delta.`{root}` WHERE id = 3").collect()
    spark.stop()
    (record,) = [record for file in listed(root, "delta") for record in read(file)]
    assert record.rule == "file.unreadable" and "deletion vector" in record.detail
