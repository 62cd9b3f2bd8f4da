"""spaCy's English word tokenizer, one chunk at a time: its rules and its order of them, on plain strings.

    "(don't)..."  --affixes, from both ends, until an exception is left-->  "("  "don't"  ")"  "..."
                  --exceptions-->                                           "("  "do"  "n't"  ")"  "..."

spaCy searches a chunk, end by end, for some 200 prefixes and suffixes, and wraps each piece in objects of its
own. Here a look at the first or last character tells most of them, and the rest are spaCy's own expressions.
Of each chunk the words are those of `spacy.blank("en")`, checked by a test over random chunks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from spark_jobs.cleaning.words import Divide, Mark

LONGEST = 1000
"""Characters of a chunk from which on it is one word: spaCy's time grows with the square of its length, and
C4 drops a line with such a word."""
LONGEST_SUFFIX = 6
"""Characters of a suffix that is no run of dots; the longest is a unit of five."""


@cache
def divider() -> Divide:
    """The divider of chunks into words."""
    from spacy.lang.en import English
    from spacy.symbols import ORTH

    defaults: Any = English.Defaults
    exceptions = {
        text: [token[ORTH] for token in tokens] for text, tokens in defaults.tokenizer_exceptions.items()
    }
    affixes = Affixes(defaults.prefixes, defaults.suffixes, defaults.infixes, defaults.url_match)
    return Tokenizer(affixes, exceptions).words


@cache
def sentence_mark() -> Mark:
    """What a word means to spaCy's rule-based `sentencizer`."""
    from spacy.pipeline import Sentencizer

    ends = frozenset(Sentencizer.default_punct_chars)

    def mark(word: str) -> str:
        if word[0].isalnum():
            return "O"
        if word in ends:
            return "T"
        return "" if all(unicodedata.category(character)[0] == "P" for character in word) else "O"

    return mark


class Affixes:
    """What stands at the ends of a chunk and within it, by spaCy's expressions.

    Args:
        prefixes, suffixes, infixes: expressions of spaCy's language defaults.
        url: match of a whole chunk that is an address.
    """

    def __init__(
        self, prefixes: Sequence[str], suffixes: Sequence[str], infixes: Sequence[str], url: Any
    ) -> None:
        self._first, self._last = _plain(prefixes), _plain(suffixes)
        self._prefix = re.compile("|".join(filter(str.strip, prefixes))).match
        self._suffix = re.compile(f"(?:{'|'.join(filter(str.strip, suffixes))})$").search
        self._infix = re.compile(f"(?={_INFIX_FIRST})(?:{'|'.join(infixes)})").finditer
        self._url = url

    def prefix(self, text: str) -> int:
        """Length of the prefix; 0 for none. A letter or digit begins one only as currency: US$, A$, C$."""
        first = text[0]
        if first in self._first:
            return 1
        if first.isascii() and first.isalnum() and "$" not in text[:4]:
            return 0
        found = self._prefix(text)
        return found.end() if found else 0

    def suffix(self, text: str) -> int:
        """Length of the suffix; 0 for none. Behind an ASCII letter it is 's or a unit after a digit."""
        if text[-1] in self._last:
            return 1
        if not _SUFFIX_END(text[-6:]):
            return 0
        found = self._suffix(text, 0 if text.endswith("..") else max(0, len(text) - LONGEST_SUFFIX))
        return len(text) - found.start() if found else 0

    def inside(self, text: str) -> list[str]:
        """The pieces of a text between infixes, and these."""
        if (text.isascii() and text.isalnum()) or ("." in text and self._url(text)):
            return [text]
        start, pieces = 0, list[str]()
        for infix in self._infix(text):
            if infix.start() == 0:
                continue
            pieces += (text[start : infix.start()], infix.group())
            start = infix.end()
        return [piece for piece in (*pieces, text[start:]) if piece]


class Tokenizer:
    """spaCy's `Tokenizer`.

    Args:
        affixes: where chunks are split.
        exceptions: texts that are split otherwise, and how.
    """

    def __init__(self, affixes: Affixes, exceptions: Mapping[str, list[str]]) -> None:
        self._affixes, self._exceptions = affixes, exceptions
        self._apart: dict[tuple[str, str], list[list[str]]] = {}
        """The first two -> the words that affixes make of an exception, as ":" and ")"."""
        for text in exceptions:
            words = [] if text.isspace() else self._split(text, {})
            if len(words) > 1:
                self._apart.setdefault((words[0], words[1]), []).append(words)

    def words(self, chunk: str) -> list[str]:
        """The words of a chunk."""
        if len(chunk) >= LONGEST:
            return [chunk]
        words = self._split(chunk, self._exceptions)
        if len(words) == 1 or self._apart.keys().isdisjoint(pairwise(words)):
            return words
        return self._joined(words)

    def _split(self, text: str, exceptions: Mapping[str, list[str]]) -> list[str]:
        words: list[str] = []
        behind: list[str] = []
        while text and text not in exceptions:
            prefix = self._affixes.prefix(text)
            if prefix and text[prefix:] in exceptions:
                words.append(text[:prefix])
                text = text[prefix:]
                break
            suffix = self._affixes.suffix(text[prefix:]) if prefix < len(text) else 0
            stop = len(text) - suffix
            if suffix:
                behind.append(text[stop:])
            if suffix and text[:stop] in exceptions:
                text = text[:stop]
                break
            if not prefix and not suffix:
                break
            if prefix:
                words.append(text[:prefix])
            text = text[prefix:stop]
        if text:
            words += exceptions.get(text) or self._affixes.inside(text)
        return words + behind[::-1]

    def _joined(self, words: list[str]) -> list[str]:
        """The words with the exceptions that stand among them; of those that overlap the longest, then the
        first."""
        spans = [
            range(start, start + len(apart))
            for start, pair in enumerate(pairwise(words))
            for apart in self._apart.get(pair, ())
            if words[start : start + len(apart)] == apart
        ]
        taken: set[int] = set()
        chosen = []
        for span in sorted(spans, key=lambda span: (-len(span), span.start)):
            if taken.isdisjoint(span):
                chosen.append(span)
            taken.update(span)
        for span in sorted(chosen, key=lambda span: -span.start):
            words[span.start : span.stop] = self._exceptions["".join(words[span.start : span.stop])]
        return words


def _plain(expressions: Iterable[str]) -> frozenset[str]:
    """The ASCII characters that are an affix by themselves; none begins or ends a longer one."""
    return frozenset(found[-1] for found in expressions if re.fullmatch(r"\\?[!-~]", found))


_SUFFIX_END = re.compile(r"[^A-Za-z0-9]\Z|['’][sS]\Z|[0-9][A-Za-z/]{1,5}\Z").search
_INFIX_FIRST = r"[-.+*^,~:<>=/]|[^\x00-\x7f]"
"""What an infix begins with."""
