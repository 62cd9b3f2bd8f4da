"""The same run on an object store."""

from __future__ import annotations

import boto3
import pytest
from moto.server import ThreadedMotoServer

from bloomery.artifacts.store import S3Store
from tests.training.ranks import Ranks
from tests.training.world import make_world
from training.resume import choose


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


def test_a_restart_reads_the_copy_on_the_nodes_disk_and_the_store_only_where_it_is_damaged(store, tmp_path):
    remote = Ranks(make_world(tmp_path / "unused", store=store), tmp_path / "remote", "c" * 64)
    assert remote.train(remote.job(), stop_at=6) != [None, None]
    copies = sorted(path.parent for path in (tmp_path / "remote" / "copies").rglob("index.json"))
    assert [copy.name for copy in copies] == ["checkpoint-000000006"], "only the newest is kept"

    def resumed(damage):
        job = remote.job(resume=remote.at(6))
        damage()
        return choose(job, 0, 1, lambda wrong: [wrong])

    victim, place = copies[0] / "rank00001.safetensors", f"{remote.standing()[0].place}"
    kept, stored = victim.read_bytes(), store.read(f"{place}/{victim.name}")
    assert kept == stored
    store.remove(f"{place}/{victim.name}")
    assert resumed(lambda: None).standing.step == 6, "nothing was downloaded"
    chosen = resumed(lambda: victim.write_bytes(kept[:-1]))
    assert chosen.standing.step == 5 and victim.name in chosen.refused[0]
    store.put_new(f"{place}/{victim.name}", stored)
    assert resumed(lambda: victim.write_bytes(kept[:-1])).standing.step == 6
    assert victim.read_bytes() == kept, "it was brought again"
