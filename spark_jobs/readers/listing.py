"""Lists the files of a source: name, size and version, sorted by path; no data file is opened.

A path is relative to the source's root, so that a corpus keeps its records' ids when its folder moves. What
cannot be read is listed, too, with the reason as its version: ingest accounts for it, and a gate decides.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from bloomery.config.settings import settings
from bloomery.config.sources import Source
from bloomery.errors import BloomeryError
from spark_jobs.readers.builtin import python_files

SUFFIXES = {
    ".warc": "warc",
    ".wet": "warc",
    ".wat": "warc",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
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
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
UNREADABLE = "unreadable: "
"""Begins the version of a file that could not be read when it was listed; the reason follows."""


class SourceError(BloomeryError):
    """A source that is empty or cannot be listed."""


class File(NamedTuple):
    """A listed file."""

    source: str
    path: str
    """Relative to the source's root, with slashes; `%` and bytes that are no UTF-8 as %XX."""
    uri: str
    """s3://bucket/key, or an absolute local path, percent-encoded like `path`."""
    size: int
    """Bytes as stored, compressed or not."""
    version: str
    """ETag of an object, time of the last change in nanoseconds, or UNREADABLE and why."""
    format: str
    """A reader's name, or `unknown`, which ingest quarantines whole."""
    columns: str = ""
    """JSON object of columns that all of its rows have in common: where a Delta table is partitioned."""

    @property
    def compression(self) -> str:
        """The suffix that names it, or nothing."""
        return next((suffix for suffix in COMPRESSED if self.path.lower().endswith(suffix)), "")

    @property
    def local(self) -> bytes:
        """The local path, as the file system has it."""
        return unquote_to_bytes(self.uri)


def list_source(source: Source) -> list[File]:
    """Every file of `source`, sorted by path; hidden files and folders are left out.

    Raises:
        SourceError: no file, or a root that cannot be listed.
    """
    if source.uri == "builtin://python":
        found = [_local(source, path, name, kind) for name, path, kind in python_files()]
    elif source.format == "delta":
        found = list(_delta(source))
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


def _format(source: Source, name: str) -> str:
    return format_of(name) if source.format == "auto" else source.format


# ---------------------------------------------------------------- local
def _folder(source: Source, root: Path) -> Iterator[File]:
    if glob.has_magic(str(root)):
        static = Path(*_until_magic(root.parts))
        for path in static.glob(root.relative_to(static).as_posix()):
            if not path.is_dir():
                yield _local(source, path, path.relative_to(static).as_posix())
    elif root.is_dir():
        if (root / "_delta_log").is_dir():
            raise SourceError(
                f"source {source.name}: {root} is a Delta table", "give the source `format: delta`"
            )
        for path, reason in _walk(root, frozenset()):
            if path == root:
                raise SourceError(
                    f"source {source.name}: {root} cannot be read: {reason}", "check its rights"
                )
            yield _local(source, path, path.relative_to(root).as_posix(), reason=reason)
    elif os.path.lexists(root):
        yield _local(source, root, root.name)
    else:
        raise SourceError(f"source {source.name}: {root} does not exist", "check its uri")


def _until_magic(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        if glob.has_magic(part):
            return
        yield part


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[tuple[Path, str]]:
    """Files below `folder`, links followed, and what cannot be entered with the reason."""
    try:
        found = folder.stat()
        if (found.st_dev, found.st_ino) in above:
            raise OSError(errno.ELOOP, "a link to a folder that it stands in")
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        yield folder, error.strerror or str(error)
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _walk(folder / entry.name, above | {(found.st_dev, found.st_ino)})
        else:
            yield folder / entry.name, ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _local(source: Source, path: Path, name: str, kind: str | None = None, reason: str = "") -> File:
    size, version = 0, ""
    try:
        found = path.stat()
        if not reason and not stat.S_ISREG(found.st_mode):
            reason = "it is no regular file"
        elif not reason and not os.access(path, os.R_OK):
            reason = "Permission denied"
        size, version = found.st_size, str(found.st_mtime_ns)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        size, version = 0, f"{UNREADABLE}{reason}"
    path_name, uri = percent(name), percent(str(path.absolute()))
    return File(source.name, path_name, uri, size, version, kind or _format(source, path_name))


def percent(name: str) -> str:
    """A file's name as UTF-8 text that stands for no other: `%` and undecodable bytes as %XX."""
    return re.sub("[%\udc80-\udcff]", lambda found: f"%{ord(found.group()) & 0xFF:02X}", name)


# ---------------------------------------------------------------- objects
def _objects(source: Source) -> Iterator[File]:
    """Objects below a prefix, or that match a glob: `*` and `?` within a name, `**` across folders."""
    bucket, _, prefix = source.uri.removeprefix("s3://").partition("/")
    wanted = None
    if glob.has_magic(prefix):
        wanted = _pattern(prefix)
        prefix = re.split(r"[*?\[]", prefix, maxsplit=1)[0]
        prefix = prefix[: prefix.rfind("/") + 1]
    for item in _listed(source, bucket, prefix):
        key = item["Key"]
        name = key.removeprefix(prefix).lstrip("/") or key.rsplit("/", 1)[-1]
        hidden = any(part.startswith(".") for part in name.split("/"))
        if key.endswith("/") or hidden or (wanted and not wanted.fullmatch(key)):
            continue
        uri = f"s3://{bucket}/{key}"
        yield File(source.name, name, uri, item["Size"], item["ETag"], _format(source, name))


def _listed(source: Source, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = boto3.client("s3", endpoint_url=settings().s3_endpoint)
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            yield from page.get("Contents", ())
    except (BotoCoreError, ClientError) as error:
        raise SourceError(
            f"source {source.name}: {source.uri} cannot be listed: {error}",
            "check bucket, rights, credentials",
        ) from error


def _pattern(glob_: str) -> re.Pattern[str]:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob_)
    return re.compile("".join(tokens.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts))


# ---------------------------------------------------------------- Delta
def _delta(source: Source) -> Iterator[File]:
    """The data files of a Delta table's current version, by its log.

    A file of which rows were deleted by a deletion vector is listed as unreadable: its deleted rows must not
    come back.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    remote = source.uri.startswith("s3://")
    root = source.uri if remote else str(Path(source.uri.removeprefix("file://")).absolute())
    try:
        table = DeltaTable(root, storage_options=_s3_options() if remote else None)
        actions = table.get_add_actions().select(["path", "size_bytes"])
        partitions = table.get_add_actions(flatten=True)
        vectors_: Any = table.deletion_vectors()
        vectors = {
            unquote(name.as_py()).rsplit("/", 1)[-1]
            for batch in vectors_
            for name in batch.column("filepath")
        }
    except (DeltaError, OSError) as error:
        raise SourceError(
            f"source {source.name}: {root} cannot be read as a Delta table: {error}", "check its uri"
        ) from error
    constants = [name for name in partitions.schema.names if name.startswith("partition.")]
    objects = _etags(source, root) if remote else {}
    for row in range(actions.num_rows):
        name = unquote(actions.column("path")[row].as_py())
        columns = {c.removeprefix("partition."): partitions.column(c)[row].as_py() for c in constants}
        if remote:
            uri = f"{root.rstrip('/')}/{name}"
            size, etag = objects.get(uri, (0, f"{UNREADABLE}the table's log names it, and it is not there"))
            file = File(source.name, name, uri, size, etag, "parquet")
        else:
            file = _local(source, Path(root, name), name, "parquet")
        if name.rsplit("/", 1)[-1] in vectors:
            reason = "a deletion vector removes rows of it: purge the table (REORG TABLE ... APPLY (PURGE))"
            file = file._replace(size=0, version=f"{UNREADABLE}{reason}")
        yield file._replace(columns=json.dumps(columns, sort_keys=True, default=str) if columns else "")


def _etags(source: Source, root: str) -> dict[str, tuple[int, str]]:
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/") + "/"
    return {
        f"s3://{bucket}/{item['Key']}": (item["Size"], item["ETag"])
        for item in _listed(source, bucket, prefix)
    }


def _s3_options() -> dict[str, str]:
    endpoint = settings().s3_endpoint
    if not endpoint:
        return {}
    plain = {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
    return {"AWS_ENDPOINT_URL": endpoint} | plain
