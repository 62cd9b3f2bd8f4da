"""A dataset in an object store: what is asked of it fetches what it needs, and no more."""

from __future__ import annotations

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import S3Store
from bloomery.shards.dataset import Dataset
from bloomery.shards.export import export
from bloomery.shards.lookup import locate
from tests.servers import KEYS
from tests.shards.data import dataset, documents


@pytest.fixture
def shards(monkeypatch, tmp_path):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    store = S3Store("s3://shards/here", f"http://{host}:{port}")
    boto3.client("s3", endpoint_url=store.endpoint).create_bucket(Bucket="shards")
    digest = dataset(tmp_path / "made")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            store.upload(path, f"data/{path.relative_to(tmp_path / 'made').as_posix()}")
    yield Artifact(Output(digest=digest), "data", store)
    server.stop()


def test_a_lookup_fetches_tables_and_side_files_only(shards, tmp_path):
    cache = tmp_path / "cache"
    opened = Dataset.fetch(shards, cache)
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} == {".json", ".shards", ""}
    wanted = documents(200)[17]
    (found,) = locate(opened, [wanted.id], lambda name: shards.store.fetch(f"data/{name}", cache))
    assert (found.source, found.stop - found.start) == ("web", len(wanted.tokens))
    assert found.origin.path == wanted.path
    fetched = [path for path in cache.rglob("*") if path.suffix in {".bin", ".idx", ".side"}]
    assert {path.suffix for path in fetched} == {".side"} and len(fetched) <= len(opened.streams())


def test_an_export_streams_shard_by_shard(shards, tmp_path):
    export(shards, "npy", tmp_path / "out")
    whole = Dataset.open(tmp_path / "made").stream("train", "web")
    files = sorted((tmp_path / "out/train/web").glob("*.npy"))
    expected = [whole.shard(number).tokens.tolist() for number in range(len(whole.table))]
    assert [np.fromfile(file, "<u2").tolist() for file in files] == expected
