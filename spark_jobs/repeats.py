"""Repeats: lines, paragraphs and word sequences of the survivors that stand elsewhere, too; all but one are
cut.

    text -> units (hash, first and last character) -> the least (content, place) of a hash stays -> cuts

Units are lines, paragraphs (CCNet: Wenzek et al. 2020, arXiv:1911.00359, section 3.1), or each run of so many
words (Lee et al. 2022, arXiv:2107.06499, section 4.1: 50 tokens). Lines and paragraphs are compared in lower
case with each white space one blank, word runs as `words_of` has them. What is cut is a place in a text,
never a string: the same words elsewhere stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bloomery.config.corpus import RepeatsConfig
from spark_jobs.engine import functions, windows
from spark_jobs.minhash import WORD, ngrams, normalised, same_length_lower, word_hashes
from spark_jobs.tables import record_batch

UNITS = "id string, content string, rule string, one bigint, two bigint, start bigint, end bigint"
LINE, PARAGRAPH = re.compile(r"[^\n]+"), re.compile(r"[^\n]+(?:\n[^\n]+)*")


class Unit(NamedTuple):
    """A piece of a text that may stand elsewhere."""

    rule: str
    one: int
    two: int
    """128 bits of its hash, as two signed integers."""
    start: int
    end: int


def find_repeats(texts: Any, config: RepeatsConfig) -> Any:
    """(id, rule, start, end) of each place to cut, in characters; several may overlap.

    Args:
        texts: DataFrame (id, content, text) of the survivors.
        config: which units.
    """
    F, window = functions(), windows()  # noqa: N806
    units = texts.mapInArrow(partial(_units, config), UNITS)
    least = F.min(F.struct("content", "start")).over(window.partitionBy("rule", "one", "two"))
    marked = units.withColumn("least", least).where(F.col("least") != F.struct("content", "start"))
    return marked.select("id", "rule", "start", "end")


def units_of(text: str, config: RepeatsConfig) -> Iterator[Unit]:
    """Every unit of a text that is long enough."""
    for rule, wanted, pattern in (
        ("dedup.line", config.lines, LINE),
        ("dedup.paragraph", config.paragraphs, PARAGRAPH),
    ):
        if wanted:
            for match in pattern.finditer(text):
                if len(match.group()) >= config.min_characters:
                    hashed = hashlib.sha256(normalised(match.group()).encode()).digest()
                    one, two = np.frombuffer(hashed[:16], "<i8").tolist()
                    yield Unit(rule, one, two, *match.span())
    if config.words:
        hashes = word_hashes(text)
        spans = [match.span() for match in WORD.finditer(same_length_lower(text))]
        one = ngrams(hashes, config.words).view(np.int64).tolist()
        two = ngrams(~hashes, config.words).view(np.int64).tolist()
        for place, (first, second) in enumerate(zip(one, two, strict=True)):
            yield Unit("dedup.words", first, second, spans[place][0], spans[place + config.words - 1][1])


def cut(text: str, places: list[tuple[int, int]]) -> str:
    """The text without the characters of `places`, each (start, end); they may overlap."""
    kept, at = [], 0
    for start, end in sorted(places):
        kept.append(text[at : max(at, start)])
        at = max(at, end)
    return "".join([*kept, text[at:]])


def _units(config: RepeatsConfig, batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        for row in batch.to_pylist():
            found = [(row["id"], row["content"], *unit) for unit in units_of(row["text"], config)]
            for start in range(0, len(found), 1 << 16):
                yield record_batch(found[start : start + (1 << 16)], UNITS)
