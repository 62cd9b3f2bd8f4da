"""The built-in source: the real text of the machine's own Python environment. It ships nothing.

Package descriptions, README, HTML, reST and Markdown documents and licences of the distributions of the
base constraint set, in sorted order, and the docstrings of the standard library. It differs between
machines, so it never feeds a golden digest.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path

import bloomery

DOCUMENTS = {".md": "markdown", ".rst": "text", ".html": "html", ".htm": "html"}
NAMED = re.compile(
    r"(readme|licen[cs]e|copying|notice|authors|contributing|changes|changelog|history|news)[^/]*$", re.I
)
PLAIN = {"", ".txt", ".text"}
NOT_OURS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def python_files() -> Iterator[tuple[str, Path, str]]:
    """(name, path, format) of every file of the source, each once: two distributions may own one file."""
    found: dict[str, tuple[str, Path, str]] = {}
    for name in base_distributions():
        try:
            found |= {file[0]: file for file in _documents(distribution(name))}
        except PackageNotFoundError:  # of another platform
            continue
    found |= {file[0]: file for file in _standard_library(Path(sysconfig.get_path("stdlib")))}
    yield from found.values()


def base_distributions() -> list[str]:
    """Sorted names of the base constraint set: those in constraints.txt, else what `bloomery` requires."""
    constraints = Path(bloomery.__file__).parent.parent / "constraints.txt"
    if constraints.is_file():
        lines = constraints.read_text(encoding="utf-8").splitlines()
        return sorted({_name(line) for line in lines if re.match(r"\s*[A-Za-z0-9]", line)})
    names, waiting = {"bloomery"}, ["bloomery"]
    while waiting:
        for requirement in _requirements(waiting.pop()):
            if requirement not in names:
                names.add(requirement)
                waiting.append(requirement)
    return sorted(names - {"bloomery"})


def _requirements(name: str) -> list[str]:
    try:
        return [_name(line) for line in requires(name) or () if "extra ==" not in line]
    except PackageNotFoundError:
        return []


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]).lower()


def _documents(found: Distribution) -> Iterator[tuple[str, Path, str]]:
    for file in sorted(found.files or (), key=str):
        name, suffix = file.name, file.suffix.lower()
        if name == "METADATA":
            kind = "metadata"
        elif suffix in DOCUMENTS:
            kind = DOCUMENTS[suffix]
        elif suffix in PLAIN and (NAMED.match(name) or "licenses" in file.parts):
            kind = "text"
        else:
            continue
        path = Path(str(file.locate()))
        if path.is_file() and ".." not in file.parts:
            yield f"site/{file.as_posix()}", path, kind


def _standard_library(root: Path) -> Iterator[tuple[str, Path, str]]:
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not NOT_OURS & set(name.parts):
            yield f"stdlib/{name.as_posix()}", path, "python"
