"""Shards of a dataset in an object store, on a node's disk: fetched whole, checked, up to a limit of bytes.

    wanted -> there? -> use it, note the time                     LRU by the file's mtime
           -> lock of the shard -> room, by evicting the oldest -> temporary file -> right sha256? -> rename

Ranks and runs of a node share one folder a dataset; no process keeps anything in memory that another needs:

* a shard's lock (flock) lets one process fetch it and the others wait; the kernel lets go of it when one dies
* a temporary file is allocated at once, so it counts against the limit, and is locked by its writer: one that
  can be locked is a dead writer's, and is removed
* a file gets its name after its sha256 was found right: what has a name is whole, also after a kill
* one that was evicted stays readable for whoever has it open
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.store import Store, StoreError
from bloomery.errors import BloomeryError, TransientError
from bloomery.shards.dataset import MANIFEST, Dataset, Manifest, Stream
from bloomery.shards.format import DamagedError

TRIES = 3
"""Copies that are fetched before a file counts as damaged in the store, too."""
PATIENCE = 600.0
"""Seconds that a store may fail before a fetch gives up."""
SLOWEST = 30.0
"""Most seconds between two tries."""
AHEAD = 2
"""Shards that are fetched at a time ahead of their use."""
TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class ShardCache:
    """The shards of one dataset below a folder of this node: a `Fetch`."""

    store: Store
    place: str
    """Key of the dataset's folder in the store."""
    folder: Path
    limit: int
    """Bytes that the shards in the folder may have; one shard always may."""
    log: Callable[[str], None] = print
    patience: float = PATIENCE
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AHEAD, "fetch-ahead"))
    _queued: set[str] = field(default_factory=set)

    def open(self, digest: str) -> Dataset:
        """Opens the dataset; fetches its root and tables, which stay.

        Raises:
            DamagedError: they are not what was written.
        """
        self._get(MANIFEST, digest)
        manifest = self.folder / MANIFEST
        dataset = Dataset(self.folder, Manifest.model_validate_json(manifest.read_bytes()))
        for name, expected in dataset.tables().items():
            self._get(name, expected)
        return Dataset.open(self.folder, digest)

    def shard(self, stream: Stream, number: int, again: bool) -> None:
        """Has the files of a shard in the stream's folder."""
        info = stream.table[number]
        stem = f"{stream.split}/{stream.source}/{info.name}"
        files = {f"{stream.split}/{stream.source}/{name}": digest for name, digest in info.files().items()}
        if not again and self._use(files):
            return
        with self._lock(stem):
            if again:
                for name, digest in files.items():
                    self._drop(name, digest)
            for name, digest in files.items():
                if not (self.folder / name).exists():
                    self._download(name, digest)
            self._use(files)

    def ahead(self, stream: Stream, numbers: Iterable[int]) -> None:
        """Fetches shards in threads of their own; what fails is met again, and named, when it is needed."""
        for number in numbers:
            name = stream.table[number].name
            if name not in self._queued and not (stream.folder / f"{name}.bin").exists():
                self._queued.add(name)
                self._pool.submit(self._fetch_ahead, stream, number, name)

    def _fetch_ahead(self, stream: Stream, number: int, name: str) -> None:
        with contextlib.suppress(BloomeryError, OSError):
            self.shard(stream, number, False)
        self._queued.discard(name)

    def close(self) -> None:
        """Gives up what was not begun yet."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- one file -----------------------------------------------------------------------------------

    def _use(self, files: Iterable[str]) -> bool:
        """Notes the time of use; whether all are there."""
        try:
            for name in files:
                os.utime(self.folder / name)
        except FileNotFoundError:
            return False
        return True

    def _get(self, name: str, digest: str) -> None:
        with self._lock(name):
            self._drop(name, digest)
            if not (self.folder / name).exists():
                self._download(name, digest)

    def _drop(self, name: str, digest: str) -> None:
        """Removes a file that is not what it should be; another process may have mended it already, or evict
        it meanwhile."""
        path = self.folder / name
        with contextlib.suppress(FileNotFoundError):
            if file_digest(path) != digest:
                path.unlink()

    def _download(self, name: str, digest: str) -> None:
        """Fetches one file; its lock is held.

        Raises:
            DamagedError: the store's copy is absent, or not what it should be.
            TransientError: the store does not answer.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        found = "absent"
        for _ in range(TRIES):
            with self._temporary(path.parent) as (temporary, number):
                try:
                    self._patiently(name, number)
                except StoreError as error:
                    raise DamagedError(path, f"cannot be fetched: {error.what}") from error
                found = file_digest(temporary)
                if found == digest:
                    os.replace(temporary, path)
                    return
            self.log(
                f"{self.store.uri}/{self.place}/{name}: sha256 {found}, expected {digest}: fetched again"
            )
        raise DamagedError(
            path, f"{TRIES} copies of {self.place}/{name} had sha256 {found}, expected {digest}"
        )

    def _patiently(self, name: str, number: int) -> None:
        began, wait = time.monotonic(), 0.1
        key = f"{self.place}/{name}"
        while True:
            try:
                self._make_room(self.store.size(key), number)
                with open(number, "r+b", closefd=False) as file:
                    file.seek(0)
                    self.store.download(key, file)
                return
            except TransientError as error:
                if time.monotonic() - began > self.patience:
                    raise
                self.log(f"{error.what}; tried again in {wait:.1f} s")
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, SLOWEST)

    @contextlib.contextmanager
    def _temporary(self, folder: Path) -> Iterator[tuple[Path, int]]:
        path = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        with self._lock("room"):  # a sweeper must not find it before it is locked
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            fcntl.flock(number, fcntl.LOCK_EX)
        try:
            yield path, number
        finally:
            os.close(number)
            path.unlink(missing_ok=True)

    # --- room ---------------------------------------------------------------------------------------

    def _make_room(self, size: int, number: int) -> None:
        """Allocates `size` bytes in a temporary file; evicts the shards that were used longest ago."""
        with self._lock("room"):
            kept, total = [], 0
            for path in (
                path for split in ("train", "held_out") for path in (self.folder / split).rglob("*")
            ):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_dir() or (path.name.startswith(TEMPORARY) and _swept(path)):
                        continue
                    about = path.stat()
                    total += about.st_size
                    if not path.name.startswith(TEMPORARY):
                        kept.append((about.st_mtime, path, about.st_size))
            for _, path, held in sorted(kept):
                if total + size <= self.limit:
                    break
                path.unlink(missing_ok=True)
                total -= held
            if size:
                os.posix_fallocate(number, 0, size)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        folder = self.folder / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / name.replace("/", "+"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _swept(path: Path) -> bool:
    """Removes the temporary file of a dead writer; whether it was one."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink(missing_ok=True)
        return True
