"""One contract, two stores: a folder and S3 (a real SeaweedFS). A store that breaks it is refused."""

from __future__ import annotations

import resource
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from bloomery.artifacts.store import LocalStore, S3Store, StoreError, StoreUnavailableError, open_store, probe
from tests.deployment import ROOT, free_port
from tests.servers import KEYS, make_bucket, seaweedfs


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    for name, value in KEYS.items():
        patch.setenv(name, value)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with seaweedfs(tmp_path_factory.mktemp("weed")) as endpoint:
        make_bucket(endpoint, "bloomery")
        yield endpoint
    patch.undo()


@pytest.fixture(params=["local", "s3"])
def store(request, tmp_path):
    if request.param == "local":
        return open_store(f"file://{tmp_path}/store")
    return open_store(f"s3://bloomery/{uuid.uuid4().hex}", request.getfixturevalue("s3"))


def test_a_sound_store_passes_the_probe_and_keeps_nothing_of_it(store):
    probe(store)
    assert list(store.keys("probe")) == []


def test_one_of_sixteen_racers_wins_a_key(store):
    with ThreadPoolExecutor(16) as pool:
        wins = list(pool.map(lambda i: store.put_new("actions/k", b"%d" % i), range(16)))
    assert wins.count(True) == 1
    assert store.read("actions/k") == b"%d" % wins.index(True)


def test_swaps_lose_no_update(store):
    store.put_new("refs/n", b"0")

    def add(_):
        while True:
            found = store.get("refs/n")
            if store.swap("refs/n", b"%d" % (int(found.data) + 1), found.etag):
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert store.read("refs/n") == b"24"
    assert not store.swap("refs/n", b"x", None)
    assert not store.swap("refs/absent", b"x", store.get("refs/n").etag)
    assert store.get("refs/absent") is None


def test_files_and_folders_come_back_as_they_went(store, tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 1000)
    store.upload(tmp_path / "file", "data/s/k/a/out/one")
    store.upload(tmp_path / "file", "data/s/k/a/out/deep/two")
    store.put_new("data/s/k/a/other", b"")
    folder = store.fetch("data/s/k/a/out", tmp_path / "cache")
    assert (folder / "deep" / "two").read_bytes() == (folder / "one").read_bytes() == b"abc" * 1000
    assert store.exists("data/s/k/a/out")
    assert not store.exists("data/s/k/a/ou")
    store.remove("data/s/k/a/out")
    assert not store.exists("data/s/k/a/out")
    assert store.exists("data/s/k/a/other")
    with pytest.raises(StoreError, match="does not exist"):
        store.fetch("data/s/k/a/out", tmp_path / "again")
    with pytest.raises(StoreError, match="does not exist"):
        store.read("data/nothing")


class Forgetful(LocalStore):
    """Accepts every swap, as some S3 servers do."""

    def swap(self, key, data, expected):
        return super().swap(key, data, found.etag if (found := self.get(key)) else None)


class Overwriting(S3Store):
    """Sends no condition: what a server that ignores it amounts to."""

    def _put(self, key, data, condition):
        return super()._put(key, data, {})


def test_a_store_without_conditional_put_or_swap_is_refused(s3, tmp_path):
    with pytest.raises(StoreError, match=r"conditional put .* overwrote"):
        probe(Overwriting(f"s3://bloomery/{uuid.uuid4().hex}", s3))
    with pytest.raises(StoreError, match="stale tag was accepted"):
        probe(Forgetful(tmp_path / "store"))


@pytest.mark.parametrize("uri", ["ftp://host/x", "s3://", "gs://bucket"])
def test_a_wrong_uri_is_named(uri):
    with pytest.raises(StoreError, match="is not a store") as error:
        open_store(uri)
    assert "BLOOMERY_STORE" in str(error.value)


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "", "a/./b"])
def test_a_key_cannot_leave_the_store(tmp_path, key):
    with pytest.raises(StoreError, match="is not a key"):
        LocalStore(tmp_path).put_new(key, b"")


def test_a_store_that_does_not_answer_and_a_bucket_that_is_not_there(s3):
    with pytest.raises(StoreUnavailableError, match="s3://bloomery"):
        open_store("s3://bloomery/x", f"http://127.0.0.1:{free_port()}").get("k")
    with pytest.raises(StoreError, match="s3://no-such-bucket"):
        probe(open_store("s3://no-such-bucket/x", s3))


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    """A file size limit stands in for the full disk: the kernel refuses the write in the same way."""
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from bloomery.artifacts.store import LocalStore, StoreError
try:
    LocalStore({str(tmp_path / "store")!r}).put_new("data/big", b"x" * 10000)
except StoreError as error:
    sys.exit(0 if "data/big" in str(error) and "cannot be written" in str(error) else 3)
sys.exit(4)
"""
    assert resource.RLIMIT_FSIZE is not None
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, check=False).returncode == 0
    store = LocalStore(tmp_path / "store")
    assert list(store.keys("")) == []


def test_a_write_to_a_device_that_is_full_names_it():
    store = LocalStore("/dev/full")
    with pytest.raises(StoreError, match="/dev/full"):
        store.put_new("data/x", b"x")
