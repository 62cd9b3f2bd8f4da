"""Line rules that edit a text: those of RefinedWeb, and repeated lines and paragraphs of one document.

RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, section 3.1 and appendix G.2, "Line-wise corrections";
DCLM, arXiv:2406.11794, takes them over) removes a line that is mostly upper case, of digits alone, a counter
("3 likes"), of one word, or short with a phrase of navigation; and the document where such lines hold more
than 5% of its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from bloomery.config.cleaning import LineRules
from spark_jobs.cleaning.rules import Text, ratio, rule
from spark_jobs.cleaning.words import WINDOW, batches, windows

PAPER = "arXiv:2306.01116, G.2"
MOSTLY = 0.5
"""Fraction of upper-case characters from which on a line is mostly upper case."""
SHORT = 10
"""Words of a line that is short."""
COUNTER = re.compile(
    r"\d+(?:[.,]\d+)?[km]?\s+(?:likes?|shares?|comments?|retweets?|reposts?|quotes?|"
    r"bookmarks?|upvotes?|downvotes?|downloads?|views?|followers?)",
    re.IGNORECASE,
)
NAVIGATION = re.compile(
    r"(?:sign[ -]in|log[ -]in|sign[ -]up)\b|.*\b(?:read more|load more|see more|show more)"
    r"\W*\Z|.*\bitems? in (?:your )?cart\b",
    re.IGNORECASE,
)


@rule("document.characters", "what every document must have", edited=True)
def characters(text: Text) -> float:
    """Number of characters."""
    return len(text.text)


@rule("refinedweb.removed_words", PAPER)
def removed_words(text: Text) -> float:
    """Fraction of white-space words in the lines that RefinedWeb's rules remove; nan without words."""
    wrong = removed = 0
    for batch in batches(text.lines, len):
        gone = [line for line, is_wrong in zip(batch, _wrong(batch), strict=True) if is_wrong]
        wrong += len(gone)
        removed += sum(len(line.split()) for line in gone)
    return ratio(removed, sum(len(window.split()) for window in windows(text.text))) if wrong else 0.0


def edit(text: Text, rules: Iterable[LineRules]) -> Text:
    """The text after line rules, applied in order."""
    for name in rules:
        edited = _EDITS[name](text)
        if edited != text.text:
            text = Text(edited, text.lexicon, text.c4_lines)
    return text


def _refinedweb(text: Text) -> str:
    rows = text.text.split("\n")
    wrong = (gone for batch in batches(rows, len) for gone in _wrong([row.strip() for row in batch]))
    return "\n".join(row for row, gone in zip(rows, wrong, strict=True) if not gone).strip()


def _duplicate_lines(text: Text) -> str:
    return "\n".join(_first(text.text.split("\n"))).strip()


def _duplicate_paragraphs(text: Text) -> str:
    return "\n\n".join(_first(text.paragraphs)).strip()


def _first(items: Iterable[str]) -> Iterator[str]:
    """The items without those that equal an earlier one; blank ones stay."""
    seen: set[str] = set()
    for item in items:
        if not item or item not in seen:
            seen.add(item)
            yield item


def _wrong(lines: list[str]) -> list[bool]:
    """Whether RefinedWeb removes each of some stripped lines; blank ones stay."""
    return [
        bool(line)
        and (
            " " not in line
            or upper > MOSTLY
            or (
                len(line) < _LONGEST_SHORT
                and (line[0].isdigit() or _hints(line))
                and len(line.split()) <= SHORT
                and (COUNTER.fullmatch(line) or NAVIGATION.match(line)) is not None
            )
        )
        for line, upper in zip(lines, _upper_fractions(lines), strict=True)
    ]


def _hints(line: str) -> bool:
    """Whether NAVIGATION may match: a look before the search, which takes more letters for these than
    `str.lower` does."""
    lower = line.lower()
    return (
        "sign" in lower
        or "log" in lower
        or "more" in lower
        or "cart" in lower
        or (not line.isascii() and _LIKE_I_OR_S.search(line) is not None)
    )


def _upper_fractions(lines: list[str]) -> list[float]:
    """Fraction of upper-case characters of each line; of ASCII, or of any where a line is not."""
    if not lines:
        return []
    if len(lines) == 1:
        parts = (lines[0][start : start + WINDOW] for start in range(0, len(lines[0]), WINDOW))
        upper_ones = sum(int(np.count_nonzero(_is_upper(_codes(part)))) for part in parts)
        return [upper_ones / max(len(lines[0]), 1)]
    codes = _codes("\n".join(lines))
    ends = np.flatnonzero(np.append(codes == 10, True))
    upper = np.concatenate(([0], np.cumsum(_is_upper(codes))))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = np.maximum(ends - starts, 1)
    fractions: list[float] = ((upper[ends] - upper[starts]) / lengths).tolist()
    return fractions


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _is_upper(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    return _UPPER[np.minimum(codes, len(_UPPER) - 1)]


_LONGEST_SHORT = 200
_LIKE_I_OR_S = re.compile("[ſıİ]")
_UPPER: npt.NDArray[np.int32] = np.array(
    [chr(point).isupper() for point in range(1 << 16)] + [False], np.int32
)
_EDITS: dict[LineRules, Callable[[Text], str]] = {
    "c4": lambda text: text.c4.text,
    "refinedweb": _refinedweb,
    "duplicate_lines": _duplicate_lines,
    "duplicate_paragraphs": _duplicate_paragraphs,
}
