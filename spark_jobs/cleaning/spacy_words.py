"""spaCy's English word tokenizer, memoised per chunk: no model, no pipeline, no attributes but the words.

spaCy divides a chunk by searching it, end by end, for some 150 prefixes, suffixes and infixes. Most chunks
hold none, which a look at their ends tells: the searches below are spaCy's own behind such a look. Of each
chunk the words are those of `spacy.blank("en")`, checked by a test over random chunks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from spark_jobs.cleaning.words import Divide, Mark

LONGEST = 1000
"""Characters of a chunk from which on it is one word: spaCy's time grows with the square of its length, and
C4 drops a line with such a word."""
BATCH = 1 << 12
"""Chunks that are tokenized at a time, after which spaCy forgets their words."""

APART = "apart"
"""A word that stands between chunks; as a rule of its own it costs no search."""


@cache
def divider() -> Divide:
    """The divider of chunks into words."""
    from spacy.lang.en import English
    from spacy.symbols import ORTH
    from spacy.tokenizer import Tokenizer
    from spacy.util import compile_infix_regex, compile_prefix_regex, compile_suffix_regex
    from spacy.vocab import Vocab

    defaults: Any = English.Defaults
    vocab = Vocab()
    tokenizer = Tokenizer(
        vocab,
        rules=defaults.tokenizer_exceptions | {APART: [{ORTH: APART}]},
        prefix_search=_prefix(compile_prefix_regex(defaults.prefixes).match),
        suffix_search=_suffix(compile_suffix_regex(defaults.suffixes).search),
        infix_finditer=_infixes(compile_infix_regex(defaults.infixes).finditer),
        token_match=defaults.token_match,
        url_match=defaults.url_match,
        max_cache_size=0,
    )

    def divide(chunks: list[str]) -> Iterator[list[str]]:
        for start in range(0, len(chunks), BATCH):
            yield from _divide(vocab, tokenizer, chunks[start : start + BATCH])

    return divide


@cache
def sentence_mark() -> Mark:
    """What a word means to spaCy's rule-based `sentencizer`."""
    from spacy.pipeline import Sentencizer

    ends = frozenset(Sentencizer.default_punct_chars)

    def mark(word: str) -> str:
        if word in ends:
            return "T"
        return "" if all(unicodedata.category(character)[0] == "P" for character in word) else "O"

    return mark


def _divide(vocab: Any, tokenizer: Any, chunks: list[str]) -> Iterator[list[str]]:
    short = [chunk for chunk in chunks if len(chunk) < LONGEST]
    with vocab.memory_zone():
        # spaCy looks for its exceptions, as ":)", across white space, too: a word keeps chunks apart.
        columns = tokenizer(f" {APART} ".join(short)).to_array(["ORTH", "SPACY"]).tolist()
        texts = {key: vocab.strings[key] for key in {key for key, _ in columns}}
    divided: list[list[str]] = [[]]
    for key, space in columns:
        divided[-1].append(texts[key])
        if space:
            divided.append([])
    found = iter(divided[::2])
    for chunk in chunks:
        yield next(found) if len(chunk) < LONGEST else [chunk]


def _prefix(match: Callable[[str], Any]) -> Callable[[str], Any]:
    """A letter or digit begins a prefix only as currency: US$, A$, C$."""

    def search(text: str) -> Any:
        first = text[0]
        return None if first.isascii() and first.isalnum() and "$" not in text[:4] else match(text)

    return search


def _suffix(search: Callable[..., Any]) -> Callable[[str], Any]:
    """Behind an ASCII letter a suffix is 's or a unit after a digit; only a run of dots is longer than 16."""
    possible = re.compile(r"[^A-Za-z0-9]\Z|['’][sS]\Z|[0-9][A-Za-z/]{1,5}\Z").search

    def find(text: str) -> Any:
        if not possible(text[-6:]):
            return None
        return search(text, 0 if text.endswith("..") else max(0, len(text) - 16))

    return find


def _infixes(finditer: Callable[[str], Any]) -> Callable[[str], Any]:
    """Nothing splits a chunk of ASCII letters and digits."""
    return lambda text: () if text.isascii() and text.isalnum() else finditer(text)
