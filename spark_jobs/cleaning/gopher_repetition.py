"""Repetition rules of Gopher (Rae et al. 2021, arXiv:2112.11446, section A.1.1, "Repetition removal",
Table A1).

Characters are counted against the characters of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_jobs.cleaning.ngrams import DUPLICATE, TOP
from spark_jobs.cleaning.rules import Text, ratio, rule

PAPER = "arXiv:2112.11446, A.1.1, Table A1"


@rule("gopher_repetition.duplicate_paragraphs", PAPER)
def duplicate_paragraphs(text: Text) -> float:
    """Fraction of paragraphs that stand earlier in the text, too."""
    return ratio(text.paragraphs.repeated.pieces, len(text.paragraphs))


@rule("gopher_repetition.duplicate_paragraph_characters", PAPER)
def duplicate_paragraph_characters(text: Text) -> float:
    """Fraction of characters in such paragraphs."""
    return ratio(text.paragraphs.repeated.characters, len(text.text))


@rule("gopher_repetition.duplicate_lines", PAPER)
def duplicate_lines(text: Text) -> float:
    """Fraction of lines that stand earlier in the text, too."""
    return ratio(text.runs.repeated.pieces, len(text.runs))


@rule("gopher_repetition.duplicate_line_characters", PAPER)
def duplicate_line_characters(text: Text) -> float:
    """Fraction of characters in such lines."""
    return ratio(text.runs.repeated.characters, len(text.text))


def _ngrams(size: int, doc: str) -> Callable[[Text], float]:
    def measure(text: Text) -> float:
        return ratio(text.repeated_characters[size], len(text.text))

    measure.__doc__ = doc
    return measure


for _size in TOP:
    rule(f"gopher_repetition.top_{_size}_gram", PAPER)(
        _ngrams(_size, f"Fraction of characters in the commonest {_size}-gram.")
    )
for _size in DUPLICATE:
    rule(f"gopher_repetition.duplicate_{_size}_grams", PAPER)(
        _ngrams(_size, f"Fraction of characters in {_size}-grams like which one began before.")
    )
