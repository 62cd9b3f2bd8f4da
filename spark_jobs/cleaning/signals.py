"""Every signal of a document: one column of the table of the stage `measure` each, by rules and by others.

    raw --extract, repair, NFC--> before --line rules--> after --personal data replaced--> text
                                    |                      |
                     Gopher, C4, RefinedWeb, language   FineWeb, document, blocklist, classifier

As in FineWeb, personal data goes last and changes no measure.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args

from bloomery.config.cleaning import Family, MeasureConfig, OptOut, Pii, Profile

# Each module of rules registers its own when it is imported.
from spark_jobs.cleaning import c4, datatrove, fineweb, gopher, gopher_repetition, lines  # noqa: F401
from spark_jobs.cleaning.blocklists import bad_words, blocked
from spark_jobs.cleaning.classifier import score
from spark_jobs.cleaning.language import Language, identify
from spark_jobs.cleaning.pii import redact
from spark_jobs.cleaning.rules import RULES, Text, count_repeats, measure
from spark_jobs.cleaning.words import Lexicon, white_space

OTHERS = (
    *(f"pii.{kind}" for kind in get_args(Pii)),
    *("opt_out.declared", "blocklist.bad_words", "blocklist.urls", "classifier.score"),
)
"""Signals that are no rule's on a text alone."""
SIGNALS = tuple(
    name for family in get_args(Family) for name in (*RULES, *OTHERS) if name.partition(".")[0] == family
)
"""Names, "family.measure", by family; within one in the order of its module."""


class Document(NamedTuple):
    """What is measured."""

    text: str
    url: str | None = None
    """Where it comes from, if known."""
    metadata: str | None = None
    """Its other fields as a JSON object, if any."""


class Measured(NamedTuple):
    """A document's final text and what was measured of it."""

    text: str
    language: Language | None
    signals: dict[str, float | None]
    """By name; None where a text has no such measure, or it was not asked for."""


def column(signal: str) -> str:
    """Column of a signal."""
    return signal.replace(".", "_")


def measure_texts(documents: Sequence[Document], config: MeasureConfig) -> list[Measured]:
    """Edits and measures mended texts.

    Args:
        documents: extracted and mended; together about as many as `words.batches` puts together.
        config: line rules, kinds of personal data, lists and classifier.
    """
    texts = [Text(document.text, lexicon(config.profile), config.c4_lines) for document in documents]
    count_repeats(texts)
    return [_measured(text, document, config) for text, document in zip(texts, documents, strict=True)]


def _measured(before: Text, document: Document, config: MeasureConfig) -> Measured:
    after = lines.edit(before, config.lines)
    final = redact(after.text, config.pii)
    signals: dict[str, float | None] = dict.fromkeys(SIGNALS)
    signals |= measure(before, after, config.profile)
    signals |= {f"pii.{kind}": count for kind, count in final.counts.items()}
    signals["opt_out.declared"] = _declared(document.metadata, config.opt_out)
    if config.bad_words:
        signals["blocklist.bad_words"] = bad_words(after.text.lower(), config.bad_words)
    if config.blocked_urls and document.url:
        signals["blocklist.urls"] = blocked(document.url, config.blocked_urls)
    if config.classifier:
        signals["classifier.score"] = score(after.text, config.classifier)
    found = {
        name: None if value is None or math.isnan(value) else float(value) for name, value in signals.items()
    }
    return Measured(final.text, identify(document.text), found)


def _declared(metadata: str | None, opt_outs: tuple[OptOut, ...]) -> int:
    """How many fields of the metadata say that the document is not to be trained on."""
    if not metadata:
        return 0
    fields: Mapping[str, Any] = {name.lower(): value for name, value in json.loads(metadata).items()}
    return sum(_says(fields.get(opt_out.field.lower()), opt_out.values) for opt_out in opt_outs)


def _says(value: Any, wanted: tuple[str, ...]) -> bool:
    if value is None:
        return False
    listed = value if isinstance(value, list) else str(value).replace(",", " ").replace(";", " ").split()
    return not {str(item).lower() for item in listed}.isdisjoint(word.lower() for word in wanted)


@cache
def lexicon(profile: Profile) -> Lexicon:
    """The words of a profile, and this worker's memo of them.

    All that was imported so far stays: Spark has a worker collect garbage after each task, which takes 0.2 s
    to look through it.
    """
    words = datatrove.english() if profile == datatrove.PROFILE else white_space()
    gc.freeze()
    return words
