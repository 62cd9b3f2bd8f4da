"""Quality rules: a rule measures a text, bounds in the config judge, the table keeps both.

    @rule("gopher.mean_word_length", ...)      measures        3.71
    config: clean.gopher.min_mean_word_length  judges          3.0 <= 3.71
            clean.gopher.max_mean_word_length                  3.71 <= 10.0

A rule `family.name` is bounded by the fields min_name and max_name (either or both) of the config's section
`family`, and its measure stands in the column `family_name`. Nothing else needs to know that it exists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.config.base import Config

WORD = re.compile(r"\S*[^\W_]\S*")
ALPHABETIC = re.compile(r"[^\W\d_]")


class Text:
    """A text and what the rules measure it by, each computed once.

    Words are split at white space, as version 1 of the stage defines them; those of symbols alone are
    counted apart.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def chunks(self) -> list[str]:
        """What white space separates, symbols included."""
        return self.text.split()

    @cached_property
    def words(self) -> list[str]:
        """Chunks that hold a letter or a digit."""
        return WORD.findall(self.text)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Characters of each word: [words]."""
        return np.fromiter(map(len, self.words), np.int64, len(self.words))

    @cached_property
    def lines(self) -> list[str]:
        """Lines that hold more than white space, without it at either end."""
        return [stripped for line in self.text.splitlines() if (stripped := line.strip())]


class Rule(NamedTuple):
    """A registered rule."""

    name: str
    paper: str
    measure: Callable[[Text], float]

    @property
    def column(self) -> str:
        """Column of its measure."""
        return self.name.replace(".", "_")


class Verdict(NamedTuple):
    """The first bound that a text breaks."""

    rule: str
    value: float
    threshold: float


RULES: dict[str, Rule] = {}


def rule(name: str, paper: str) -> Callable[[Callable[[Text], float]], Callable[[Text], float]]:
    """Registers a rule under `name`, "family.measure"; `paper` says where it stands."""

    def register(measure: Callable[[Text], float]) -> Callable[[Text], float]:
        assert name not in RULES, f"two rules are named {name}"
        RULES[name] = Rule(name, paper, measure)
        return measure

    return register


def measure(text: Text) -> dict[str, float]:
    """Every rule's measure of a text; nan where it has none, as the mean word length of no words."""
    return {name: float(found.measure(text)) for name, found in RULES.items()}


def judge(measures: Mapping[str, float], config: Config) -> Verdict | None:
    """The first bound of the config that the measures break, in the order of registration; else None."""
    for name, value in measures.items():
        low, high = bounds(name, config)
        if math.isnan(value):
            continue
        if value < low:
            return Verdict(name, value, low)
        if value > high:
            return Verdict(name, value, high)
    return None


def bounds(name: str, config: Config) -> tuple[float, float]:
    """Least and greatest measure that rule `name` allows; infinite where the config sets none."""
    family, _, short = name.partition(".")
    section = getattr(config, family)
    return getattr(section, f"min_{short}", -math.inf), getattr(section, f"max_{short}", math.inf)
