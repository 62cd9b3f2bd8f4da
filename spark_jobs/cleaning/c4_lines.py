"""Line rules of C4 (Raffel et al. 2020, JMLR 21:140, section 2.2) and of its code, tensorflow_datasets'
c4_utils: which lines stay, and what the document's rules count in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import methodcaller
from typing import NamedTuple

from bloomery.config.cleaning import C4Lines
from spark_jobs.cleaning.words import Lexicon

TERMINAL = (".", "?", "!", '"', "'")
_MAY_END = methodcaller("endswith", (*TERMINAL, "]"))  # what ends in "]" may do so in a citation
ELLIPSIS = "..."
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
LOREM, SCRIPT = "lorem ipsum", "javascript"
POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


class Kept(NamedTuple):
    """What the line rules leave of a text."""

    text: str
    sentences: int
    lorem_ipsum: int
    """Lines with that phrase."""
    curly_brackets: int
    """Lines with one."""


def keep_lines(lines: Iterable[str], rules: C4Lines, lexicon: Lexicon) -> Kept:
    """Applies the line rules to a text's lines."""
    lines, kept = list(_ended(lines, rules)), []
    lower = "\n".join(lines).lower()
    unwanted = [SCRIPT] * rules.javascript + list(POLICIES) * rules.policies
    plain = not any(phrase in lower for phrase in (LOREM, *unwanted))
    lorem = curly = 0
    for line in lines:
        words = "" if plain else line.lower()
        lorem += LOREM in words
        if SCRIPT in unwanted and SCRIPT in words:
            continue
        curly += "{" in line
        if words and any(phrase in words for phrase in unwanted):
            continue
        kept.append(line)
    return Kept("\n".join(kept).strip(), lexicon.sentences(kept), lorem, curly)


def _ended(lines: Iterable[str], rules: C4Lines) -> Iterator[str]:
    """Lines of enough words that end as a sentence does, without citations."""
    stripped: Iterable[str] = map(str.strip, lines)
    for line in filter(_MAY_END, stripped) if rules.terminal_punctuation else stripped:
        bare = CITATION.sub("", line) if rules.citations and "[" in line else line
        if rules.terminal_punctuation and (not bare.endswith(TERMINAL) or bare.endswith(ELLIPSIS)):
            continue
        if len(line.split(None, rules.min_words)) < rules.min_words:
            continue
        if len(line) > rules.max_word_length and max(map(len, line.split())) > rules.max_word_length:
            continue
        yield bare
