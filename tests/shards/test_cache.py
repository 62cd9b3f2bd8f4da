"""The cache of a node: whole files only, whatever is killed, fails or is damaged, within its limit."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import threading
import time

import boto3
import pytest
from moto.server import ThreadedMotoServer

from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.store import LocalStore, S3Store, StoreUnavailableError
from bloomery.shards import cache as cache_module
from bloomery.shards.cache import ShardCache
from bloomery.shards.dataset import Dataset
from bloomery.shards.format import DamagedError
from bloomery.shards.reader import Shards
from tests.deployment import free_port
from tests.shards.data import dataset


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return folder, dataset(folder / "shards")


class SlowStore(LocalStore):
    """A folder behind a thin line."""

    def download(self, key, file):
        data = self.read(key)
        for start in range(0, len(data), 512):
            file.write(data[start : start + 512])
            file.flush()
            time.sleep(0.001)


def cache(store, folder, limit=1 << 30, **about):
    return ShardCache(store, "shards", folder, limit, log=lambda line: None, **about)


def shard_files(folder):
    return [path for split in ("train", "held_out") for path in (folder / split).rglob("*") if path.is_file()]


def check(folder, dataset, limit):
    """Every file with a name is whole."""
    expected = {
        name: digest
        for stream in dataset.streams()
        for number in range(len(stream.table))
        for name, digest in stream.table[number].files().items()
    }
    named = [path for path in shard_files(folder) if not path.name.startswith(".tmp-")]
    assert all(file_digest(path) == expected[path.name] for path in named)
    assert sum(path.stat().st_size for path in shard_files(folder)) <= limit


def test_shards_of_a_bucket_are_fetched_when_read_and_evicted_by_use(origin, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    folder, digest = origin
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="data")
    store = S3Store("s3://data/here", endpoint)
    for path in (path for path in (folder / "shards").rglob("*") if path.is_file()):
        store.upload(path, path.relative_to(folder).as_posix())
    limit = 3 * max(path.stat().st_size for path in shard_files(folder / "shards"))
    here = cache(store, tmp_path, limit)
    opened = here.open(digest)
    assert shard_files(tmp_path) == []
    for stream in opened.streams():
        shards = Shards(stream, here)
        for number in range(len(stream.table)):
            shards.open(number).read(0, 1)
            last = f"{stream.table[number].name}.bin"
            check(tmp_path, opened, limit)
            assert last in {path.name for path in shard_files(tmp_path)}
    stream = opened.stream("train", "web")
    here.ahead(stream, range(2))
    while here._queued:
        time.sleep(0.01)
    assert (stream.folder / f"{stream.table[1].name}.side").exists()
    here.close()
    server.stop()


def test_a_bad_copy_is_never_accepted_also_after_a_restart(origin, tmp_path):
    folder, digest = origin
    shutil.copytree(folder, tmp_path / "bad")
    for path in (tmp_path / "bad").rglob("*.bin"):
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
    for _ in range(2):
        here = cache(LocalStore(tmp_path / "bad"), tmp_path / "here")
        stream = here.open(digest).stream("train", "web")
        with pytest.raises(DamagedError, match=r"3 copies of shards/train/web/\w+\.bin had sha256"):
            here.shard(stream, 0, again=False)
        assert not list((tmp_path / "here").rglob("*.bin"))
        assert not list((tmp_path / "here").rglob(".tmp-*"))
    here = cache(LocalStore(folder), tmp_path / "here")  # the store is mended
    shards = Shards(stream, here)
    assert shards.open(0).read(0, 1) is not None


def test_a_file_that_is_damaged_here_is_fetched_again(origin, tmp_path):
    folder, digest = origin
    here = cache(LocalStore(folder), tmp_path)
    stream = here.open(digest).stream("train", "web")
    for suffix in ("bin", "idx", "side"):
        here.shard(stream, 0, again=False)
        path = stream.folder / f"{stream.table[0].name}.{suffix}"
        path.write_bytes(path.read_bytes()[:-1])
        here.shard(stream, 0, again=True)
        check(tmp_path, Dataset.open(folder / "shards"), 1 << 30)
    (tmp_path / "manifest.json").write_bytes(b"{}")
    assert cache(LocalStore(folder), tmp_path).open(digest).manifest.digest == digest


@pytest.mark.parametrize("when", ["before it is read", "before it is removed"])
def test_a_file_that_another_evicts_while_it_is_looked_at_is_fetched(origin, tmp_path, monkeypatch, when):
    folder, digest = origin
    here = cache(LocalStore(folder), tmp_path)
    stream = here.open(digest).streams()[0]
    here.shard(stream, 0, again=False)
    path, real = stream.folder / f"{stream.table[0].name}.idx", cache_module.file_digest
    path.write_bytes(b"damaged")

    def evicted(file):
        if file != path:
            return real(file)
        if when == "before it is read":
            path.unlink(missing_ok=True)
            return real(file)
        found = real(file)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(cache_module, "file_digest", evicted)
    here.shard(stream, 0, again=True)
    monkeypatch.undo()
    assert real(path) == stream.table[0].files()[path.name]


def _worker(store, folder, digest, limit, seed):
    here, draw = cache(store, folder, limit), random.Random(seed)
    streams = here.open(digest).streams()
    while True:
        stream = draw.choice(streams)
        shards = Shards(stream, here)
        for _ in range(5):  # another may evict it between the fetch and the opening
            try:
                shards.open(draw.randrange(len(stream.table))).read(0, 1)
            except DamagedError as error:
                assert isinstance(error.__cause__, FileNotFoundError), error


def test_ranks_that_are_killed_at_any_time_leave_whole_files(origin, tmp_path):
    folder, digest = origin
    store, opened, draw = SlowStore(folder), Dataset.open(folder / "shards"), random.Random(3)
    limit = 6 * max(path.stat().st_size for path in shard_files(folder / "shards"))
    cache(store, tmp_path).open(digest)
    context = multiprocessing.get_context("fork")
    start = lambda seed: context.Process(target=_worker, args=(store, tmp_path, digest, limit, seed))  # noqa: E731
    workers = [start(seed) for seed in range(4)]
    for worker in workers:
        worker.start()
    try:
        for seed in range(4, 24):
            time.sleep(draw.uniform(0.02, 0.12))
            victim = draw.randrange(len(workers))
            assert workers[victim].exitcode is None, "a rank met a file that was not whole"
            os.kill(workers[victim].pid, signal.SIGKILL)
            workers[victim].join()
            workers[victim] = start(seed)
            workers[victim].start()
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    check(tmp_path, opened, limit)
    after = cache(store, tmp_path, limit)
    for number in range(3):
        after.shard(opened.stream("train", "web"), number, again=False)
    assert not list(tmp_path.rglob(".tmp-*")), "the files of dead writers were not removed"


def test_a_store_that_fails_for_a_while_is_waited_for(origin, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    folder, digest = origin
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    store = S3Store("s3://data/here", endpoint)
    with pytest.raises(StoreUnavailableError):
        cache(store, tmp_path / "impatient", patience=0.0).open(digest)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port)

    def begin():
        server.start()
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="data")
        client.put_object(
            Bucket="data",
            Key="here/shards/manifest.json",
            Body=(folder / "shards/manifest.json").read_bytes(),
        )

    timer = threading.Timer(2.0, begin)
    timer.start()
    lines: list[str] = []
    here = ShardCache(store, "shards", tmp_path / "patient", 1 << 20, log=lines.append)
    began = time.monotonic()
    here._get("manifest.json", digest)
    assert time.monotonic() - began > 1
    assert file_digest(tmp_path / "patient" / "manifest.json") == digest
    timer.join()
    server.stop()
