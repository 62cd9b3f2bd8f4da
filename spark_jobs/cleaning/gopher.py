"""Quality rules of Gopher (Rae et al. 2021, arXiv:2112.11446, section A.1.1, "Quality filtering")."""

from __future__ import annotations

import math

from spark_jobs.cleaning.rules import ALPHABETIC, Text, rule

PAPER = "arXiv:2112.11446, A.1.1"
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
ELLIPSES = ("...", "…")
BULLETS = ("•", "‣", "▪", "◦", "●", "-", "*")


@rule("gopher.words", PAPER)
def words(text: Text) -> float:
    """Number of words that hold more than symbols."""
    return len(text.words)


@rule("gopher.mean_word_length", PAPER)
def mean_word_length(text: Text) -> float:
    """Mean length of the words that hold more than symbols, in characters; nan without any."""
    return float(text.lengths.mean()) if len(text.lengths) else math.nan


@rule("gopher.hash_ratio", PAPER)
def hash_ratio(text: Text) -> float:
    """Number of "#" per word; nan without words."""
    return text.text.count("#") / len(text.chunks) if text.chunks else math.nan


@rule("gopher.ellipsis_ratio", PAPER)
def ellipsis_ratio(text: Text) -> float:
    """Number of ellipses per word; nan without words."""
    found = sum(text.text.count(ellipsis) for ellipsis in ELLIPSES)
    return found / len(text.chunks) if text.chunks else math.nan


@rule("gopher.bullet_lines", PAPER)
def bullet_lines(text: Text) -> float:
    """Fraction of lines that start with a bullet; nan without lines."""
    return sum(line.startswith(BULLETS) for line in text.lines) / len(text.lines) if text.lines else math.nan


@rule("gopher.ellipsis_lines", PAPER)
def ellipsis_lines(text: Text) -> float:
    """Fraction of lines that end in an ellipsis; nan without lines."""
    return sum(line.endswith(ELLIPSES) for line in text.lines) / len(text.lines) if text.lines else math.nan


@rule("gopher.alpha_words", PAPER)
def alpha_words(text: Text) -> float:
    """Fraction of words, symbols included, with an alphabetic character; nan without words."""
    found = sum(ALPHABETIC.search(chunk) is not None for chunk in text.chunks)
    return found / len(text.chunks) if text.chunks else math.nan


@rule("gopher.stop_words", PAPER)
def stop_words(text: Text) -> float:
    """Number of distinct stop words, of the paper's eight."""
    return len(STOP_WORDS.intersection(text.text.lower().split()))
