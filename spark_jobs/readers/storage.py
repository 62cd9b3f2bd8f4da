"""Stored bytes of a listed file: read anywhere, from a local disk or an object store, never held whole."""

from __future__ import annotations

import errno
import os
import stat
from functools import cache
from typing import Any

from bloomery.config.settings import settings
from bloomery.errors import BloomeryError, TransientError
from spark_jobs.readers.listing import UNREADABLE, File

READ = 1 << 20
ATTEMPTS = 4
OF_THE_FILE = {
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ENXIO,
}
"""Errors that tell of the file. Any other (no memory, no descriptors) may be gone at a second try."""
CHANGED = "it has changed since the snapshot listed it"


class ReadError(BloomeryError):
    """A file that a second try would not read either; ingest accounts for it and goes on."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}", "mend the file and take a new snapshot")
        self.rule, self.detail = rule, detail


class StorageError(TransientError):
    """The place where a file is stored does not answer, or refuses to."""


class Stored:
    """The first `size` bytes of a file as the snapshot lists it; a context manager.

    Raises:
        ReadError: `file.unreadable`, or `file.changed` when the file is not, or no longer, what was listed.
        StorageError: its place does not answer.
    """

    def __init__(self, file: File) -> None:
        if file.version.startswith(UNREADABLE):
            raise ReadError("file.unreadable", file.version.removeprefix(UNREADABLE))
        self.file, self.size = file, file.size
        self._raw: _Local | _Object = (_Object if file.uri.startswith("s3://") else _Local)(file)
        self._start, self._buffer = 0, b""

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read_at(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on; fewer only where the file ends."""
        size = max(0, min(size, self.size - position))
        if not size:
            return b""
        if size > READ:
            return self._read(position, size)
        begin = position - self._start
        if begin < 0 or begin + size > len(self._buffer):
            kept = self._buffer[begin:] if begin >= 0 else b""  # what follows is read on, not asked for anew
            wanted = min(max(size - len(kept), READ), self.size - position - len(kept))
            self._start, begin = position, 0
            self._buffer = kept + self._read(position + len(kept), wanted)
        return self._buffer[begin : begin + size]

    def _read(self, position: int, size: int) -> bytes:
        data = self._raw.read(position, size)
        if len(data) < size:
            raise ReadError("file.changed", f"{CHANGED}: it ends at byte {position + len(data)}")
        return data

    def check_unchanged(self) -> None:
        """Raises `file.changed` when the file was written to while it was read."""
        self._raw.check()


class _Local:
    def __init__(self, file: File) -> None:
        self.file = file
        try:  # without O_NONBLOCK, the opening of a pipe would wait for its writer
            self.descriptor = os.open(file.local, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ReadError("file.changed", "it has vanished since the snapshot listed it") from None
        except OSError as error:
            raise _of_the_file(error, file) from error
        try:
            self.check()
        except ReadError:
            self.close()
            raise

    def check(self) -> None:
        found = os.fstat(self.descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ReadError("file.unreadable", "it is no regular file")
        if (found.st_size, str(found.st_mtime_ns)) != (self.file.size, self.file.version):
            raise ReadError("file.changed", CHANGED)

    def read(self, position: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = os.pread(self.descriptor, size, position)
            except OSError as error:
                raise _of_the_file(error, self.file) from error
            if not part:
                break
            parts.append(part)
            position, size = position + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        os.close(self.descriptor)


@cache
def _client(endpoint: str | None) -> Any:
    """The process's one client: to make one takes as long as to read a small object."""
    import boto3

    return boto3.client("s3", endpoint_url=endpoint)


class _Object:
    """Keeps one answer open and reads on in it; a read elsewhere asks anew."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.bucket, _, self.key = file.uri.removeprefix("s3://").partition("/")
        self.client = _client(settings().s3_endpoint)
        self.body: Any = None
        self.position = 0
        if not file.size:
            self._ask(self.client.head_object)

    def check(self) -> None:
        """Each answer was of the listed version, or none: there is nothing to check."""

    def read(self, position: int, size: int) -> bytes:
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        parts: list[bytes] = []
        failures = 0
        while size:
            if self.body is None or self.position != position:
                self.close()
                self.body = self._ask(self.client.get_object, Range=f"bytes={position}-")["Body"]
                self.position = position
            try:
                part: bytes = self.body.read(size)
            except (BotoCoreError, HTTPError, OSError) as error:  # the connection broke
                self.close()
                failures += 1
                if failures == ATTEMPTS:
                    raise StorageError(f"{self.file.uri}: {error}", "check the object store") from error
                continue
            if not part:
                break
            parts.append(part)
            self.position += len(part)
            position, size = self.position, size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _ask(self, method: Any, **more: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return method(Bucket=self.bucket, Key=self.key, IfMatch=self.file.version, **more)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in {404, 412}:
                raise ReadError("file.changed", CHANGED) from error
            raise StorageError(f"{self.file.uri}: {error}", "check rights and credentials") from error
        except BotoCoreError as error:
            raise StorageError(f"{self.file.uri}: {error}", "check the object store") from error

    def close(self) -> None:
        if self.body is not None:
            self.body.close()
            self.body = None


def _of_the_file(error: OSError, file: File) -> BloomeryError:
    if error.errno in OF_THE_FILE:
        return ReadError("file.unreadable", error.strerror or str(error))
    return StorageError(f"file {file.uri} cannot be read: {error.strerror}", "free what the machine lacks")


class Seekable:
    """A Stored as a file object, for readers that seek, as Parquet's."""

    closed = False

    def __init__(self, stored: Stored) -> None:
        self.stored, self.position = stored, 0

    def close(self) -> None:
        """Nothing: the Stored is closed by whoever opened it."""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to `offset` from the begin, the position or the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.stored.size}[whence]
        self.position = base + offset
        return self.position

    def tell(self) -> int:
        """Where the next read begins."""
        return self.position

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        data = self.stored.read_at(self.position, self.stored.size if size < 0 else size)
        self.position += len(data)
        return data
