"""The profile `datatrove-0.10.1`: where datatrove reads a paper's rule another way than the profile `paper`.

Words are spaCy's. Its filters of the same papers, in FineWeb's order (Gopher repetition, Gopher quality, C4,
FineWeb), decide as `clean` does with `measure.lines: [c4]` and `clean.chain: [gopher_repetition, gopher, c4,
fineweb]`; a differential test compares every document's decision and reason.
"""

from __future__ import annotations

from functools import cache
from operator import methodcaller

from bloomery.config.cleaning import Profile
from spark_jobs.cleaning.fineweb import TERMINAL, code_points
from spark_jobs.cleaning.gopher import ELLIPSES
from spark_jobs.cleaning.rules import Text, ratio, rule
from spark_jobs.cleaning.words import ALPHA, SYMBOLS, Lexicon, stop_word

PROFILE: Profile = "datatrove-0.10.1"
BULLETS = ("•", "-")
_BULLETED, _TRAILING = methodcaller("startswith", BULLETS), methodcaller("endswith", ELLIPSES)
SYMBOL_RANGES = """
    0-8 B-1F 21-2F 3A-40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA 3001-3002 3008-300D
    3010-3011 FF01 FF05 FF08-FF09 FF0C FF0E FF11 FF1A-FF1B FF1F FF5E
"""
"""Code points that make no word by themselves, with those that end a sentence (its utils/text.py)."""
SYMBOL = code_points(SYMBOL_RANGES) | TERMINAL


@cache
def english() -> Lexicon:
    """spaCy's English words; stop words count in lower case only."""
    from spark_jobs.cleaning.spacy_words import divider, sentence_mark

    return Lexicon(divider(), _flags, sentence_mark())


def _flags(word: str) -> int:
    return (
        stop_word(word) | ALPHA * any(map(str.isalpha, word)) | SYMBOLS * all(map(SYMBOL.__contains__, word))
    )


@rule("gopher.bullet_lines", "datatrove GopherQualityFilter", profile=PROFILE)
def bullet_lines(text: Text) -> float:
    """Blank lines count; two kinds of bullets."""
    return ratio(sum(map(_BULLETED, map(str.lstrip, text.all_lines))), len(text.all_lines))


@rule("gopher.ellipsis_lines", "datatrove GopherQualityFilter", profile=PROFILE)
def ellipsis_lines(text: Text) -> float:
    """Blank lines count."""
    return ratio(sum(map(_TRAILING, map(str.rstrip, text.all_lines))), len(text.all_lines))
