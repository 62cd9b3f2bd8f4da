"""Contamination: which eval items a text holds (13-grams: Brown et al. 2020, arXiv:2005.14165, appendix C).

    item    "What is the capital of ...?"  answer "Paris"
    text    ... what is the capital of ... ? it is paris ...
                [------- 13 words in a row -------]  [answer within `answer_window` words]

An item is found where `ngram` of its question's words (all of them, where it has fewer) stand in a row in the
text; words are compared in lower case, without punctuation. A question of fewer than `min_words` words
stands in many innocent texts: it counts only with its answer after it, and not at all where it has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bloomery.config.corpus import DecontaminateConfig
from spark_jobs.minhash import WORD, Hashes, ngrams, same_length_lower, word_hashes, words_of


class Item(NamedTuple):
    """An item of an eval set."""

    set: str
    number: int
    """Its line in the set, from 0."""
    question: str
    answer: str = ""

    @property
    def name(self) -> str:
        """As `gsm8k/17`."""
        return f"{self.set}/{self.number}"


class Hit(NamedTuple):
    """An item that a text holds."""

    item: str
    start: int
    """First character of the match; the answer, where it follows, ends it."""
    end: int
    answered: bool


class Wanted(NamedTuple):
    """A question to look for."""

    name: str
    words: list[str]
    answer: list[str]


class Index:
    """The n-grams of many items, looked up in a text at once."""

    def __init__(self, items: Sequence[Item], config: DecontaminateConfig) -> None:
        self.window = config.answer_window
        self.min_words = config.min_words
        self._grams: dict[int, dict[int, list[tuple[Wanted, int]]]] = {}
        for item in items:
            wanted = Wanted(item.name, words_of(item.question), words_of(item.answer))
            if not findable(item, config):
                continue
            width = min(config.ngram, len(wanted.words))
            known = self._grams.setdefault(width, {})
            for position, gram in enumerate(ngrams(word_hashes(item.question), width).tolist()):
                known.setdefault(gram, []).append((wanted, position))
        self._keys = {width: np.array(sorted(known), np.uint64) for width, known in self._grams.items()}

    def hits(self, text: str) -> list[Hit]:
        """Every item that `text` holds, by its first match, sorted by name."""
        if not self._keys:
            return []
        hashes, words = word_hashes(text), list[str]()
        found: dict[str, Hit] = {}
        spans: list[tuple[int, int]] = []
        for width, position in self._matches(hashes):
            for wanted, _ in self._grams[width][int(ngrams(hashes[position : position + width], width)[0])]:
                words = words or words_of(text)
                spans = spans or [match.span() for match in WORD.finditer(same_length_lower(text))]
                hit = self._hit(wanted, words, spans, position, width)
                known = found.get(wanted.name)
                if hit and (known is None or (hit.answered, -hit.start) > (known.answered, -known.start)):
                    found[wanted.name] = hit
        return sorted(found.values())

    def _matches(self, hashes: Hashes) -> Iterator[tuple[int, int]]:
        for width, keys in self._keys.items():
            grams = ngrams(hashes, width)
            places = np.minimum(np.searchsorted(keys, grams), len(keys) - 1)
            yield from ((width, int(position)) for position in np.flatnonzero(keys[places] == grams))

    def _hit(
        self, wanted: Wanted, words: list[str], spans: list[tuple[int, int]], position: int, width: int
    ) -> Hit | None:
        if not _contains(wanted.words, words[position : position + width]):  # two grams of one hash
            return None
        end = position + width
        after = words[end : end + self.window]
        place = _find(after, wanted.answer)
        answered = place is not None
        if len(wanted.words) < self.min_words and not answered:
            return None
        last = end + (place or 0) + len(wanted.answer) if answered else end
        return Hit(wanted.name, spans[position][0], spans[last - 1][1], answered)


def findable(item: Item, config: DecontaminateConfig) -> bool:
    """Whether an item can be told from innocent text: it has words enough, or words and an answer."""
    words = len(words_of(item.question))
    return words >= config.min_words or bool(words and words_of(item.answer))


@lru_cache(maxsize=2)
def index_of(items: bytes, config: str) -> Index:
    """The index of a set of items as `Item` rows in JSON; built once a process."""
    rows = [Item(*row) for row in json.loads(items)]
    return Index(rows, DecontaminateConfig.model_validate_json(config))


def _find(words: list[str], wanted: list[str]) -> int | None:
    """Where `wanted` first stands in `words`; None without it, or where nothing is wanted."""
    if not wanted:
        return None
    places = range(len(words) - len(wanted) + 1)
    return next((at for at in places if words[at : at + len(wanted)] == wanted), None)


def _contains(words: list[str], gram: list[str]) -> bool:
    return any(words[at : at + len(gram)] == gram for at in range(len(words) - len(gram) + 1))
