"""Lines, rows and paragraphs of a text: held where it is short, cut anew window by window where it is long.

A text of 16 MB in lines of two letters is 5.6 million strings of 51 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from spark_jobs.cleaning.words import WINDOW

Cut = Callable[[str], list[str]]
"""Cuts a window of a text into its pieces."""


class Repeated(NamedTuple):
    """Pieces that equal an earlier one."""

    pieces: int
    characters: int


class Pieces:
    """The pieces of a text, in order; iterates as often as asked to.

    Args:
        text: whole.
        cut: cuts each window.
        border: stands where a window may end, behind it.
        blank: how many empty pieces there are besides.
    """

    def __init__(self, text: str, cut: Cut, border: re.Pattern[str], blank: int = 0) -> None:
        self._text, self._cut, self._border, self._blank = text, cut, border, blank
        self._held = None if len(text) > WINDOW else [*cut(text), *[""] * blank]

    def __iter__(self) -> Iterator[str]:
        """The pieces."""
        if self._held is not None:
            return iter(self._held)
        cuts = map(self._cut, windows(self._text, self._border))
        return chain(chain.from_iterable(cuts), [""] * self._blank)

    def __len__(self) -> int:
        """How many."""
        return self._count

    @cached_property
    def _count(self) -> int:
        return len(self._held) if self._held is not None else sum(1 for _ in self)

    @cached_property
    def repeated(self) -> Repeated:
        """Those that equal an earlier one; of a long text, by 64 bits of their hashes."""
        if self._held is not None:
            distinct = set(self._held)
            characters = sum(map(len, self._held)) - sum(map(len, distinct))
            return Repeated(len(self._held) - len(distinct), characters)
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        order = np.argsort(hashes)
        hashes = hashes[order]
        again = order[1:][hashes[1:] == hashes[:-1]]
        lengths = np.fromiter(map(len, self), np.int32, len(self))
        return Repeated(len(again), int(lengths[again].sum()))


def windows(text: str, border: re.Pattern[str]) -> Iterator[str]:
    """The text in pieces of about WINDOW characters, each cut behind a border."""
    start = 0
    while len(text) - start > WINDOW and (found := border.search(text, start + WINDOW)):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _lines(text: str) -> list[str]:
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


def _rows(text: str) -> list[str]:
    return [row for row in text.split("\n") if row and not row.isspace()]


def _runs(text: str) -> list[str]:
    return [run for run in text.split("\n") if run]


def _paragraphs(text: str) -> list[str]:
    return [part for block in text.split("\n\n") if (part := block.lstrip("\n"))]


LINE_END = re.compile(r"\n|\r(?!\n)")
_FEED = re.compile(r"\n")
_BLANK_LINES = re.compile(r"\n\n+(?!\n)")

lines = partial(Pieces, cut=_lines, border=LINE_END)
"""Lines that hold more than white space, without it at either end."""
rows = partial(Pieces, cut=_rows, border=_FEED)
"""What line feeds separate, as it stands, but for rows of white space."""
all_lines = partial(Pieces, cut=str.splitlines, border=LINE_END)
"""Lines as they stand, blank ones, too."""


def runs(text: str) -> Pieces:
    """What one or more line feeds separate, as they stand: an end of the text that is one counts."""
    return Pieces(text, _runs, _FEED, text.startswith("\n") + text.endswith("\n"))


def paragraphs(text: str) -> Pieces:
    """What two or more line feeds separate."""
    return Pieces(text.strip(), _paragraphs, _BLANK_LINES)
