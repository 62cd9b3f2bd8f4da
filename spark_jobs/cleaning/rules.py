"""Quality rules: a rule measures a text, bounds in the config judge, the table keeps both.

    @rule("gopher.mean_word_length", ...)      measures        3.71
    config: clean.gopher.min_mean_word_length  judges          3.0 <= 3.71
            clean.gopher.max_mean_word_length                  3.71 <= 10.0

A rule `family.name` is bounded by the fields min_name and max_name (either or both) of the config's section
`family`, and its measure stands in the column `family_name`. Nothing else needs to know that it exists.

A profile may have its own measure of a rule where a peer reads the paper another way; the rule's name,
column and bounds stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from bloomery.config.cleaning import C4Lines, Profile
from spark_jobs.cleaning import pieces
from spark_jobs.cleaning.c4_lines import Kept, keep_lines
from spark_jobs.cleaning.ngrams import repeated_characters
from spark_jobs.cleaning.pieces import Pieces
from spark_jobs.cleaning.words import Lexicon, Words


class Text:
    """A text and what the rules measure it by, each computed once."""

    def __init__(self, text: str, lexicon: Lexicon, c4_lines: C4Lines) -> None:
        self.text, self.lexicon, self.c4_lines = text, lexicon, c4_lines

    @cached_property
    def words(self) -> Words:
        """The words, as the profile's tokenizer divides the text."""
        return self.lexicon.words(self.text)

    @cached_property
    def word_count(self) -> int:
        """Number of words."""
        return self.lexicon.count(self.text)

    @cached_property
    def lines(self) -> Pieces:
        """Lines that hold more than white space, without it at either end."""
        return pieces.lines(self.text)

    @cached_property
    def all_lines(self) -> Pieces:
        """Lines as they stand, blank ones, too."""
        return pieces.all_lines(self.text)

    @cached_property
    def rows(self) -> Pieces:
        """What line feeds separate, as it stands, but for rows of white space."""
        return pieces.rows(self.text)

    @cached_property
    def runs(self) -> Pieces:
        """What one or more line feeds separate, as they stand: an end of the text that is one counts."""
        return pieces.runs(self.text)

    @cached_property
    def paragraphs(self) -> Pieces:
        """What two or more line feeds separate."""
        return pieces.paragraphs(self.text)

    @cached_property
    def repeated_characters(self) -> Mapping[int, int]:
        """Characters of repeated n-grams, by their size."""
        return repeated_characters([self.words])[0]

    @cached_property
    def c4(self) -> Kept:
        """What C4's line rules leave."""
        return keep_lines(self.all_lines, self.c4_lines, self.lexicon)


def count_repeats(texts: Sequence[Text]) -> None:
    """Finds the repeated n-grams of several texts at once: of a short one alone, it is mostly calls. A single
    one, which may be long, looks for them when they are asked for."""
    if len(texts) > 1:
        for text, found in zip(texts, repeated_characters([text.words for text in texts]), strict=True):
            text.repeated_characters = found


class Rule(NamedTuple):
    """A registered rule."""

    name: str
    source: str
    measure: Callable[[Text], float]
    edited: bool
    """Whether it measures the text after the line rules have edited it."""

    @property
    def column(self) -> str:
        """Column of its measure."""
        return self.name.replace(".", "_")


RULES: dict[str, Rule] = {}
"""The rules as the papers have them, in order of registration."""
VARIANTS: dict[tuple[Profile, str], Rule] = {}
"""(profile, name) -> the rule as that profile measures it."""


def rule(
    name: str, source: str, *, edited: bool = False, profile: Profile = "paper"
) -> Callable[[Callable[[Text], float]], Callable[[Text], float]]:
    """Registers a rule under `name`, "family.measure"; `source` says where it stands."""

    def register(measure: Callable[[Text], float]) -> Callable[[Text], float]:
        made = Rule(name, source, measure, edited)
        if profile == "paper":
            assert name not in RULES, f"two rules are named {name}"
            RULES[name] = made
        else:
            assert name in RULES and (profile, name) not in VARIANTS, f"{profile} has no one rule {name}"
            VARIANTS[profile, name] = made
        return measure

    return register


def measure(
    before: Text, after: Text, profile: Profile, names: Iterable[str] = RULES.keys()
) -> dict[str, float]:
    """The rules' measures of a text; nan where it has none.

    Args:
        before: the text.
        after: the same after the line rules.
        profile: whose reading of the rules.
        names: of the rules; all that are registered if not given.
    """
    return {
        name: float(
            VARIANTS.get((profile, name), RULES[name]).measure(after if RULES[name].edited else before)
        )
        for name in names
    }


def ratio(part: float, whole: float) -> float:
    """part / whole; nan where there is no whole."""
    return part / whole if whole else math.nan
