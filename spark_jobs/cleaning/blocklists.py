"""Block lists that the user brings: words that no kept document holds, and hosts or URLs none comes from.

A list is a text file of one entry a line; blank lines and lines that begin with # are left out. An entry of
the URL list blocks itself and all below it: a host its subdomains and pages, a URL what it is a prefix of.
"""

from __future__ import annotations

import re
from functools import cache
from urllib.parse import urlsplit

from bloomery.config.cleaning import PinnedFile
from spark_jobs.cleaning.pinned import read_pinned

WORD = re.compile(r"\w+(?:['’-]\w+)*")


def bad_words(lower: str, listed: PinnedFile) -> int:
    """How many times words or phrases of the list stand in a text, given in lower case.

    C4 (JMLR 21:140, section 2.2) drops a document with one.
    """
    words, phrases = _words(listed)
    found = sum(map(words.__contains__, WORD.findall(lower)))
    return found + sum(
        len(re.findall(rf"(?<!\w){re.escape(phrase)}(?!\w)", lower)) for phrase in phrases if phrase in lower
    )


def blocked(url: str, listed: PinnedFile) -> bool:
    """Whether the list blocks a URL; what is none is not blocked."""
    hosts, prefixes = _urls(listed)
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return False
    labels = (parts.hostname or "").split(".")
    if any(".".join(labels[start:]) in hosts for start in range(len(labels))):
        return True
    steps = f"{parts.hostname}{parts.path}".split("/")
    return any("/".join(steps[:count]) in prefixes for count in range(1, len(steps) + 1))


@cache
def _words(listed: PinnedFile) -> tuple[frozenset[str], tuple[str, ...]]:
    entries = [entry.lower() for entry in _entries(listed)]
    words = frozenset(entry for entry in entries if WORD.fullmatch(entry))
    return words, tuple(entry for entry in entries if entry not in words)


@cache
def _urls(listed: PinnedFile) -> tuple[frozenset[str], frozenset[str]]:
    entries = [re.sub(r"^\w+://", "", entry).rstrip("/") for entry in _entries(listed)]
    hosts = frozenset(entry.lower() for entry in entries if "/" not in entry)
    return hosts, frozenset(
        f"{host.lower()}/{path}" for host, slash, path in (entry.partition("/") for entry in entries) if slash
    )


def _entries(listed: PinnedFile) -> list[str]:
    lines = read_pinned(listed).decode("utf-8").splitlines()
    return [entry for line in lines if (entry := line.strip()) and not entry.startswith("#")]
