"""Quality rules of Gopher (Rae et al. 2021, arXiv:2112.11446, section A.1.1, "Quality filtering")."""

from __future__ import annotations

from operator import methodcaller

import numpy as np

from spark_jobs.cleaning.rules import Text, ratio, rule
from spark_jobs.cleaning.words import ALPHA, STOP_WORDS, SYMBOLS

PAPER = "arXiv:2112.11446, A.1.1"
ELLIPSES = ("...", "…")
BULLETS = ("•", "‣", "▪", "◦", "●", "-", "*")
_BULLETED, _TRAILING = methodcaller("startswith", BULLETS), methodcaller("endswith", ELLIPSES)


@rule("gopher.words", PAPER)
def words(text: Text) -> float:
    """Number of words that hold more than symbols."""
    return float(np.count_nonzero(text.words.flags & SYMBOLS == 0))


@rule("gopher.mean_word_length", PAPER)
def mean_word_length(text: Text) -> float:
    """Mean length of the words that hold more than symbols, in characters; nan without any."""
    lengths = text.words.lengths[text.words.flags & SYMBOLS == 0]
    return ratio(float(lengths.sum()), len(lengths))


@rule("gopher.hash_ratio", PAPER)
def hash_ratio(text: Text) -> float:
    """Number of "#" per word; nan without words."""
    return ratio(text.text.count("#"), len(text.words.lengths))


@rule("gopher.ellipsis_ratio", PAPER)
def ellipsis_ratio(text: Text) -> float:
    """Number of ellipses per word; nan without words."""
    return ratio(sum(map(text.text.count, ELLIPSES)), len(text.words.lengths))


@rule("gopher.bullet_lines", PAPER)
def bullet_lines(text: Text) -> float:
    """Fraction of lines that start with a bullet; nan without lines."""
    return ratio(sum(map(_BULLETED, text.lines)), len(text.lines))


@rule("gopher.ellipsis_lines", PAPER)
def ellipsis_lines(text: Text) -> float:
    """Fraction of lines that end in an ellipsis; nan without lines."""
    return ratio(sum(map(_TRAILING, text.lines)), len(text.lines))


@rule("gopher.alpha_words", PAPER)
def alpha_words(text: Text) -> float:
    """Fraction of words, symbols included, with an alphabetic character; nan without words."""
    return ratio(int(np.count_nonzero(text.words.flags & ALPHA)), len(text.words.lengths))


@rule("gopher.stop_words", PAPER)
def stop_words(text: Text) -> float:
    """Number of distinct stop words, of the paper's eight."""
    found = int(np.bitwise_or.reduce(text.words.flags, initial=0))
    return (found & ((1 << len(STOP_WORDS)) - 1)).bit_count()
