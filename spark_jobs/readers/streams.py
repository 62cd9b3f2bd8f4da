"""Decoded bytes of a file, as a stream with a cap: a file is never held whole, however far it expands.

Damage does not raise: the stream ends there and says what it met, so that all before it is kept and all
after it is accounted for.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import IO, Any

from bloomery.config.settings import settings
from spark_jobs.readers.listing import File, SourceError

BLOCK = 1 << 18
ZSTD_INPUT = 512
"""Bytes given to zstandard at once. Four may stand for a block of 128 KiB, so at most 16 MiB come out."""
ZSTD_WINDOW = 128 << 20


class Decoded:
    """Iterates over the decoded blocks of a file; afterwards `count`, `error` and `rest` tell how it went."""

    def __init__(self, file: File, cap: int) -> None:
        self.file, self.cap = file, cap
        self.count = 0
        """Decoded bytes handed out."""
        self.error = ""
        """Why the stream ended before the file did; empty when it did not."""
        self.rest = 0
        """Bytes that are known to lie beyond the cap: of an uncompressed file."""

    def __iter__(self) -> Iterator[bytes]:
        with open_file(self.file) as raw:
            for block in self._blocks(raw):
                room = self.cap - self.count
                if len(block) > room:
                    self.error = f"the file decodes to more than max_file_bytes {self.cap}"
                    self.rest = 0 if self.compressed else self.file.size - self.cap
                    block = block[:room]  # noqa: PLW2901
                self.count += len(block)
                if block:
                    yield block
                if self.error:
                    return

    @property
    def compressed(self) -> bool:
        """Whether the stored size says nothing of the decoded one."""
        return self.file.path.endswith((".gz", ".zst"))

    def _blocks(self, raw: IO[bytes]) -> Iterator[bytes]:
        if self.file.path.endswith(".gz"):
            return self._gzip(raw)
        if self.file.path.endswith(".zst"):
            return self._zstandard(raw)
        return iter(lambda: raw.read(BLOCK), b"")

    def _gzip(self, raw: IO[bytes]) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        data = raw.read(BLOCK)
        while data:
            try:
                block = member.decompress(data, BLOCK)
            except zlib.error as error:
                self.error = f"broken gzip: {error}"
                return
            yield block
            data = member.unconsumed_tail
            if member.eof:
                data = member.unused_data.lstrip(b"\0") or raw.read(BLOCK).lstrip(b"\0")
                if not data:
                    return
                member = zlib.decompressobj(wbits=31)
            data = data or raw.read(BLOCK)
        yield member.flush()  # zlib may hold the last bytes back although it has taken all input
        if not member.eof:
            self.error = "gzip ends too early: the file is cut short"

    def _zstandard(self, raw: IO[bytes]) -> Iterator[bytes]:
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        frame: Any = None
        data = raw.read(ZSTD_INPUT)
        while data:
            frame = frame or decompressor.decompressobj()
            try:
                block = frame.decompress(data)
            except zstandard.ZstdError as error:
                self.error = f"broken zstandard: {error}"
                return
            if block:
                yield block
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
            data = data or raw.read(ZSTD_INPUT)
        if frame is not None or self.file.size == 0:
            self.error = "zstandard ends too early: the file is cut short"


def open_file(file: File) -> IO[bytes]:
    """The stored bytes of a listed file.

    Raises:
        SourceError: it cannot be read, or has changed since it was listed.
    """
    changed = SourceError(
        f"source {file.source}: {file.uri} has changed since the snapshot listed it", "take a new snapshot"
    )
    if file.uri.startswith("s3://"):
        return _open_object(file, changed)
    try:
        raw = open(file.uri, "rb", buffering=0)  # noqa: SIM115  the caller closes it
        stat = os.fstat(raw.fileno())
    except OSError as error:
        raise SourceError(
            f"source {file.source}: file {file.uri} cannot be read: {error.strerror}",
            "mend it, or snapshot anew",
        ) from error
    if (stat.st_size, str(stat.st_mtime_ns)) != (file.size, file.version):
        raw.close()
        raise changed
    return raw


def _open_object(file: File, changed: SourceError) -> IO[bytes]:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = file.uri.removeprefix("s3://").partition("/")
    try:
        client = boto3.client("s3", endpoint_url=settings().s3_endpoint)
        body: IO[bytes] = client.get_object(Bucket=bucket, Key=key, IfMatch=file.version)["Body"]
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 412:
            raise changed from error
        raise SourceError(
            f"source {file.source}: {file.uri}: {error}", "check rights, or snapshot anew"
        ) from error
    except BotoCoreError as error:
        raise SourceError(f"source {file.source}: {file.uri}: {error}", "check the endpoint") from error
    return body
