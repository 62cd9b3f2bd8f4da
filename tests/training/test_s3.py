"""The same run on an object store."""

from __future__ import annotations

import boto3
import pytest
from moto.server import ThreadedMotoServer

from bloomery.artifacts.store import S3Store
from tests.training.ranks import Ranks
from tests.training.world import make_world


@pytest.fixture
def store(monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="runs")
    yield S3Store("s3://runs/here", endpoint)
    server.stop()


def test_checkpoints_on_s3_equal_those_on_a_disk_and_resume(store, ranks, tmp_path):
    remote = Ranks(make_world(tmp_path / "unused", store=store), tmp_path / "remote", ranks.run)
    assert remote.train(remote.job(), stop_at=10) != [None, None]
    assert remote.train(remote.job(resume=remote.at(10))) == [None, None]
    assert ranks.train(ranks.job()) == [None, None]
    assert remote.journal.head().manifest.outputs == ranks.journal.head().manifest.outputs
