"""Files that the user brings, by path and digest: read on every worker, refused where the bytes differ."""

from __future__ import annotations

from pathlib import Path

from bloomery.artifacts.canonical import sha256
from bloomery.config.cleaning import PinnedFile
from bloomery.errors import BloomeryError


class PinnedFileError(BloomeryError):
    """A file is not there, or is not the one that the config names."""


def read_pinned(file: PinnedFile) -> bytes:
    """The file's bytes.

    Raises:
        PinnedFileError: it cannot be read, or its sha256 is another.
    """
    try:
        data = Path(file.path).read_bytes()
    except OSError as error:
        raise PinnedFileError(
            f"{file.path}: cannot be read: {error}", "place the file there on every worker"
        ) from error
    if (found := sha256(data)) != file.sha256:
        raise PinnedFileError(
            f"{file.path}: sha256 is {found}, the config says {file.sha256}",
            "name the digest of the file that is meant, or place that file there",
        )
    return data
