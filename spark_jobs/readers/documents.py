"""Formats of which a file is one document: text, Markdown, HTML, and what describes Python packages."""

from __future__ import annotations

import ast
import inspect
from email.parser import HeaderParser
from typing import Any

from spark_jobs.readers.encoding import NotTextError, Text, decode, utf8
from spark_jobs.readers.fields import BadRecordError, Document, metadata


def text(data: bytes) -> Document:
    """Plain text."""
    found = decoded(data)
    return Document(found.utf8, metadata=metadata(about(*found[1:])))


def markdown(data: bytes) -> Document:
    """Markdown."""
    return text(data)._replace(media_type="text/markdown")


def html(data: bytes) -> Document:
    """A page, as it is: extraction is the work of a later stage."""
    found = decoded(data, markup=True)
    return Document(found.utf8, metadata=metadata(about(*found[1:])), media_type="text/html")


def package_metadata(data: bytes) -> Document:
    """The description of a Python distribution: what follows the headers of its METADATA file.

    Source: core metadata specification 2.4.
    """
    head, _, body = decoded(data).utf8.replace(b"\r\n", b"\n").partition(b"\n\n")
    headers = HeaderParser().parsestr(head.decode())
    kind = "text/markdown" if "text/markdown" in headers.get("Description-Content-Type", "") else "text/plain"
    return Document(body, licence=headers.get("License-Expression"), media_type=kind)


def python(data: bytes) -> Document:
    """The docstrings of a module, its classes and functions, each after its name."""
    try:
        module = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRecordError("python.syntax", str(error)) from None
    parts = []
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node, clean=False)
            if found and found.strip():
                heading = [] if isinstance(node, ast.Module) else [node.name]
                parts.append("\n".join([*heading, inspect.cleandoc(found)]))
    try:
        return Document(utf8("\n\n".join(parts)))
    except UnicodeEncodeError:
        raise BadRecordError("unicode.surrogate", "a docstring holds a lone surrogate") from None


def unknown(_: bytes) -> Document:
    """No document: refuses any data."""
    raise BadRecordError("file.format", "no reader goes with the file's suffix; name a format for the source")


def decoded(data: bytes, declared: str | None = None, markup: bool = False) -> Text:
    """Bytes as text.

    Raises:
        BadRecordError: `encoding`: they are none.
    """
    try:
        return decode(data, declared, markup)
    except NotTextError as error:
        raise BadRecordError("encoding", str(error)) from None


def about(encoding: str, replaced: int = 0) -> dict[str, Any]:
    """Metadata of how a text was decoded, where it was not plain UTF-8."""
    said: dict[str, Any] = {} if encoding == "utf-8" else {"encoding": encoding}
    return said | ({"replaced": replaced} if replaced else {})
