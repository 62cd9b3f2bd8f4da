"""The store: a local folder or an S3 bucket behind one small interface.

Two operations carry every guarantee: `put_new` (one winner a key) and `swap` (no lost update). `probe`
refuses a store that breaks either. Keys are slash-separated and relative to the store's root, so a store can
be moved.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from typing_extensions import override

from bloomery.errors import BloomeryError, TransientError


class StoreError(BloomeryError):
    """The store refuses, or breaks a promise that correctness rests on."""


class StoreUnavailableError(TransientError):
    """The store does not answer."""


class Stored(NamedTuple):
    """A value and the tag that `swap` expects."""

    data: bytes
    etag: str


class Store(ABC):
    """What stages need of a store. All writes are durable before a call returns."""

    uri: str

    @abstractmethod
    def get(self, key: str) -> Stored | None:
        """The value at `key`, or None."""

    @abstractmethod
    def put_new(self, key: str, data: bytes) -> bool:
        """Writes `key` unless it exists; True for the one caller whose bytes stand there."""

    @abstractmethod
    def swap(self, key: str, data: bytes, expected: str | None) -> bool:
        """Writes `key` if its tag is still `expected` (None: it does not exist); False if another was
        faster."""

    @abstractmethod
    def keys(self, prefix: str) -> Iterator[str]:
        """Every key that starts with `prefix`, sorted."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Removes `key`, and everything below `key/`; absent is fine."""

    @abstractmethod
    def upload(self, path: Path, key: str, sha: hashlib._Hash | None = None) -> None:
        """Writes a local file to `key`, streamed; visible whole or not at all.

        `sha` is updated with the bytes as they pass.
        """

    @abstractmethod
    def fetch(self, key: str, cache: Path) -> Path:
        """A local path with the bytes of `key` (a file, or a folder with all below it): the store's own or a
        copy in `cache`."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Bytes of the file at `key`.

        Raises:
            StoreError: nothing stands there.
        """

    @abstractmethod
    def download(self, key: str, file: BinaryIO) -> None:
        """Writes the bytes of `key` into an open file, streamed.

        Raises:
            StoreError: nothing stands there.
        """

    @abstractmethod
    def spark_uri(self, key: str) -> str:
        """The URI by which Spark reads and writes below `key`."""

    def exists(self, key: str) -> bool:
        """Whether a value stands at `key`, or anything below `key/`."""
        return any(k == key or k.startswith(key + "/") for k in self.keys(key))

    def read(self, key: str) -> bytes:
        """The value at `key`.

        Raises:
            StoreError: nothing stands there.
        """
        found = self.get(key)
        if found is None:
            raise StoreError(f"{self.uri}: {key} does not exist", "run the stage that makes it again")
        return found.data


class LocalStore(Store):
    """A folder. One winner a key by an exclusive link; swaps under a lock file next to the value."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.uri = str(self.root)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not key or any(part in {"", ".", ".."} for part in parts):
            raise StoreError(f"{key!r} is not a key", "use relative, slash-separated names without . or ..")
        return self.root.joinpath(*parts)

    @override
    def get(self, key: str) -> Stored | None:
        try:
            data = self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return Stored(data, hashlib.sha256(data).hexdigest())

    @override
    def put_new(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with self._temporary(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
        _sync_folder(path.parent)
        return True

    @override
    def swap(self, key: str, data: bytes, expected: str | None) -> bool:
        path = self._path(key)
        with self._lock(key):
            found = self.get(key)
            if (found.etag if found else None) != expected:
                return False
            with self._temporary(path, data) as temporary:
                os.replace(temporary, path)
            _sync_folder(path.parent)
        return True

    @override
    def keys(self, prefix: str) -> Iterator[str]:
        folder = self.root.joinpath(*prefix.split("/")[:-1])
        found = []
        for parent, _, names in os.walk(folder):
            base = Path(parent).relative_to(self.root).as_posix()
            found += [
                name if base == "." else f"{base}/{name}" for name in names if not name.startswith(".tmp-")
            ]
        yield from sorted(key for key in found if key.startswith(prefix))

    @override
    def exists(self, key: str) -> bool:
        path = self._path(key)
        return path.is_file() or (path.is_dir() and next(path.iterdir(), None) is not None)

    @override
    def remove(self, key: str) -> None:
        path = self._path(key)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @override
    def upload(self, path: Path, key: str, sha: hashlib._Hash | None = None) -> None:
        target = self._path(key)
        _make_folder(target.parent)
        temporary = target.parent / f".tmp-{uuid.uuid4().hex}"
        try:
            with open(path, "rb") as source, open(temporary, "xb") as copy:
                shutil.copyfileobj(_Hashed(source, sha) if sha else source, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
            os.replace(temporary, target)
        except OSError as error:
            raise _no_space(error, target) from error
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)

    @override
    def fetch(self, key: str, cache: Path) -> Path:
        path = self._path(key)
        if not path.exists():
            raise StoreError(f"{self.uri}: {key} does not exist", "run the stage that makes it again")
        return path

    @override
    def size(self, key: str) -> int:
        return self.fetch(key, self.root).stat().st_size

    @override
    def download(self, key: str, file: BinaryIO) -> None:
        with open(self.fetch(key, self.root), "rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)

    @override
    def spark_uri(self, key: str) -> str:
        return self._path(key).as_uri()

    @contextlib.contextmanager
    def _temporary(self, path: Path, data: bytes) -> Iterator[Path]:
        _make_folder(path.parent)
        temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except FileExistsError:
            raise
        except OSError as error:
            raise _no_space(error, path) from error
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        _make_folder(self.root / ".locks")
        with open(self.root / ".locks" / hashlib.sha256(key.encode()).hexdigest()[:2], "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Hashed:
    """A file that is hashed as it is read; it has no seek, so that it is read from begin to end."""

    def __init__(self, file: BinaryIO, sha: hashlib._Hash) -> None:
        self._file, self._sha = file, sha

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._sha.update(data)
        return data


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_space(error, folder) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _no_space(error: OSError, path: Path) -> BloomeryError:
    remedy = (
        "free space or name another store in BLOOMERY_STORE"
        if error.errno == 28
        else "check the path and its rights"
    )
    return StoreError(f"{path}: cannot be written: {error.strerror}", remedy)


_CONFLICTS = 20


class S3Store(Store):
    """A bucket and prefix. Both guarantees come from conditional PUT (If-None-Match, If-Match).

    Credentials come from the environment, as boto3 finds them; the endpoint from `endpoint` or
    AWS_ENDPOINT_URL_S3.
    """

    def __init__(self, uri: str, endpoint: str | None = None) -> None:
        self.uri = uri.rstrip("/")
        self.endpoint = endpoint
        bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        self.bucket, self.prefix = bucket, f"{prefix}/" if prefix else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return (S3Store, (self.uri, self.endpoint))

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        settings = Config(retries={"mode": "standard", "max_attempts": 6}, s3={"addressing_style": "path"})
        return boto3.client("s3", endpoint_url=self.endpoint, config=settings)

    @override
    def get(self, key: str) -> Stored | None:
        with _named(self.uri, key):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
                return Stored(answer["Body"].read(), answer["ETag"])
            except self._client.exceptions.NoSuchKey:
                return None

    @override
    def put_new(self, key: str, data: bytes) -> bool:
        return self._put(key, data, {"IfNoneMatch": "*"})

    @override
    def swap(self, key: str, data: bytes, expected: str | None) -> bool:
        return self._put(key, data, {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected})

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> bool:
        from botocore.exceptions import ClientError

        for _ in range(_CONFLICTS):
            with _named(self.uri, key):
                try:
                    self._client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data, **condition)
                    return True
                except ClientError as error:
                    answer = error.response["ResponseMetadata"]
                    if answer["HTTPStatusCode"] not in (404, 409, 412):
                        raise
            if (
                answer["HTTPStatusCode"] == 409
            ):  # another write of the key is under way: who won is not decided yet
                continue
            if not answer.get("RetryAttempts"):
                return False
            found = self.get(key)  # a try before this one may have succeeded and its answer been lost
            return found is not None and found.data == data
        return False

    @override
    def keys(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + prefix
        )
        with _named(self.uri, prefix):
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"].removeprefix(self.prefix)

    @override
    def remove(self, key: str) -> None:
        with _named(self.uri, key):
            for found in [k for k in self.keys(key) if k == key or k.startswith(key + "/")]:
                self._client.delete_object(Bucket=self.bucket, Key=self.prefix + found)

    @override
    def upload(self, path: Path, key: str, sha: hashlib._Hash | None = None) -> None:
        with _named(self.uri, key), open(path, "rb") as source:
            file = _Hashed(source, sha) if sha else source
            self._client.upload_fileobj(file, self.bucket, self.prefix + key)

    @override
    def fetch(self, key: str, cache: Path) -> Path:
        found = [k for k in self.keys(key) if k == key or k.startswith(key + "/")]
        if not found:
            raise StoreError(f"{self.uri}: {key} does not exist", "run the stage that makes it again")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self._download(name, cache / name), found))
        return cache / key

    def _download(self, key: str, path: Path) -> None:
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
        try:
            with _named(self.uri, key):
                self._client.download_file(self.bucket, self.prefix + key, str(temporary))
            os.replace(temporary, path)
        except OSError as error:
            raise _no_space(error, path) from error
        finally:
            temporary.unlink(missing_ok=True)

    @override
    def size(self, key: str) -> int:
        with _named(self.uri, key):
            answer = self._client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        return int(answer["ContentLength"])

    @override
    def download(self, key: str, file: BinaryIO) -> None:
        with _named(self.uri, key):
            self._client.download_fileobj(self.bucket, self.prefix + key, file)

    @override
    def spark_uri(self, key: str) -> str:
        return f"s3a://{self.bucket}/{self.prefix}{key}"


@contextlib.contextmanager
def _named(uri: str, key: str) -> Iterator[None]:
    """Turns botocore's errors into ours, with the store and key in them."""
    from boto3.exceptions import RetriesExceededError, S3UploadFailedError
    from botocore import exceptions
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (exceptions.ConnectionError, exceptions.HTTPClientError, RetriesExceededError) as error:
        raise StoreUnavailableError(
            f"{uri}: {key}: {error}", "check that the store runs and that the endpoint is right"
        ) from error
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
            raise StoreUnavailableError(
                f"{uri}: {key}: {error}", "try again when the store is well"
            ) from error
        if error.response["Error"]["Code"] == "NoSuchKey":
            raise
        raise StoreError(f"{uri}: {key}: {error}", "check bucket, rights and credentials") from error
    except (BotoCoreError, S3UploadFailedError) as error:
        raise StoreError(f"{uri}: {key}: {error}", "check bucket, rights and credentials") from error


def open_store(uri: str, endpoint: str | None = None) -> Store:
    """The store at `uri`: a folder, file:// or s3://bucket/prefix.

    Raises:
        StoreError: a scheme that is neither.
    """
    if uri.startswith("s3://") and uri.removeprefix("s3://").strip("/"):
        return S3Store(uri, endpoint)
    if "://" not in uri or uri.startswith("file:///"):
        return LocalStore(uri.removeprefix("file://"))
    raise StoreError(
        f"{uri!r} is not a store", "name a folder, file:///folder or s3://bucket/prefix in BLOOMERY_STORE"
    )


def probe(store: Store) -> None:
    """Refuses a store without conditional put or compare-and-swap: on such a store two attempts could both
    commit.

    Raises:
        StoreError: names the promise that was broken.
    """
    key = f"probe/{uuid.uuid4().hex}"
    remedy = "use a store with conditional writes: a local folder, S3, SeaweedFS"
    next(store.keys("probe/"), None)  # a missing bucket or wrong credentials are named by this
    try:
        if not store.put_new(key, b"one"):
            raise StoreError(f"{store.uri}: a conditional put of a new key was refused", remedy)
        if store.put_new(key, b"two") or store.read(key) != b"one":
            raise StoreError(
                f"{store.uri}: a conditional put (If-None-Match: *) overwrote an existing key", remedy
            )
        with ThreadPoolExecutor(8) as pool:
            wins = sum(pool.map(lambda i: store.put_new(f"{key}-race", b"%d" % i), range(8)))
        if wins != 1:
            raise StoreError(f"{store.uri}: {wins} of 8 racers won one conditional put", remedy)
        first = store.get(key)
        if first is None or not store.swap(key, b"three", first.etag):
            raise StoreError(f"{store.uri}: a compare-and-swap with the right tag was refused", remedy)
        if store.swap(key, b"four", first.etag) or store.read(key) != b"three":
            raise StoreError(
                f"{store.uri}: a compare-and-swap (If-Match) with a stale tag was accepted", remedy
            )
    finally:
        store.remove(f"{key}-race")
        store.remove(key)
