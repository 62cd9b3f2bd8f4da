"""Lists the files of a source: name, size and version, sorted by path; nothing is opened.

A path is relative to the source's root, so that a corpus keeps its records' ids when its folder moves.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bloomery.config.settings import settings
from bloomery.config.sources import Source
from bloomery.errors import BloomeryError
from spark_jobs.readers.builtin import python_files

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".rst": "text",
    "": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".py": "python",
}
COMPRESSED = (".gz", ".zst")


class SourceError(BloomeryError):
    """A source, or a file of it, that is empty, cannot be read, or is not what was listed."""


class File(NamedTuple):
    """A listed file."""

    source: str
    path: str
    """Relative to the source's root, with slashes."""
    uri: str
    size: int
    """Bytes as stored, compressed or not."""
    version: str
    """ETag of an object, else the time of the last change in nanoseconds."""
    format: str
    """A reader's name, or `unknown`, which ingest quarantines whole."""


def list_source(source: Source) -> list[File]:
    """Every file of `source`, sorted by path; hidden files and folders are left out.

    Raises:
        SourceError: no file, or one that cannot be read.
    """
    if source.uri == "builtin://python":
        found = [_local(source, path, name, kind) for name, path, kind in python_files()]
    elif source.uri.startswith("s3://"):
        found = list(_objects(source))
    else:
        found = list(_folder(source, Path(source.uri.removeprefix("file://"))))
    if not found:
        raise SourceError(f"source {source.name}: {source.uri} holds no files", "check its uri")
    unique = {file.path: file for file in found}  # two distributions may own one file, two globs name it
    return sorted(unique.values(), key=lambda file: file.path)


def format_of(path: str) -> str:
    """The reader that a path's suffix asks for; a compression suffix is looked through."""
    name = path.rsplit("/", 1)[-1].lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return SUFFIXES.get(Path(name).suffix, "unknown")


def _folder(source: Source, root: Path) -> Iterator[File]:
    if glob.has_magic(str(root)):
        static = Path(*_until_magic(root.parts))
        for path in static.glob(root.relative_to(static).as_posix()):
            if path.is_file():
                yield _local(source, path, path.relative_to(static).as_posix())
    elif root.is_file():
        yield _local(source, root, root.name)
    elif root.is_dir():
        for path in _walk(source, root):
            yield _local(source, path, path.relative_to(root).as_posix())
    else:
        raise SourceError(f"source {source.name}: {root} does not exist", "check its uri")


def _until_magic(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        if glob.has_magic(part):
            return
        yield part


def _walk(source: Source, root: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise SourceError(
            f"source {source.name}: folder {error.filename} cannot be read: {error.strerror}",
            "check its rights",
        ) from error

    for parent, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if not name.startswith("."):
                yield Path(parent, name)


def _local(source: Source, path: Path, name: str, kind: str | None = None) -> File:
    try:
        name.encode()
        stat = path.stat()
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise SourceError(
            f"source {source.name}: file {path} cannot be read: {error.strerror}", "mend or remove it"
        ) from error
    except UnicodeEncodeError as error:
        raise SourceError(
            f"source {source.name}: a file's name is not UTF-8: {name!r}", "rename or remove it"
        ) from error
    chosen = kind or (format_of(name) if source.format == "auto" else source.format)
    return File(source.name, name, str(path.absolute()), stat.st_size, str(stat.st_mtime_ns), chosen)


def _objects(source: Source) -> Iterator[File]:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = source.uri.removeprefix("s3://").partition("/")
    try:
        client = boto3.client("s3", endpoint_url=settings().s3_endpoint)
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(prefix).lstrip("/") or item["Key"].rsplit("/", 1)[-1]
                if item["Key"].endswith("/") or any(part.startswith(".") for part in name.split("/")):
                    continue
                chosen = format_of(name) if source.format == "auto" else source.format
                uri = f"s3://{bucket}/{item['Key']}"
                yield File(source.name, name, uri, item["Size"], item["ETag"], chosen)
    except (BotoCoreError, ClientError) as error:
        raise SourceError(
            f"source {source.name}: {source.uri} cannot be listed: {error}",
            "check bucket, rights, credentials",
        ) from error
