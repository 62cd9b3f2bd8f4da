"""Words of a text as columns of numbers, so that rules are arithmetic on arrays.

    "The cat sat."  --split-->  chunks  --tokenizer, memoised per chunk-->  words
                                                             lengths  [3, 3, 3, 1]
                                                             flags    [ALPHA | THE, ALPHA, ALPHA, SYMBOLS]
                                                             hashes   one uint64 a word, of its characters

White space separates chunks; a tokenizer divides a chunk into words by that chunk alone, so each distinct
chunk is divided once in a worker. The columns hold values, not numbers of a vocabulary: the memo may be
emptied at any time, and a long text is read in windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The eight of Gopher (arXiv:2112.11446, A.1.1); each has a bit of its own."""
ALPHA, SYMBOLS = 1 << 8, 1 << 9
"""Flags of a word: has a letter; is made of symbols alone. The bits below are those of STOP_WORDS."""

WINDOW = 1 << 19
"""Characters of a text whose chunks are held at a time."""
MEMO = 1 << 19
"""Distinct chunks that a memo holds before it is emptied: about 80 MB."""
LINE = "\0"
"""Stands between lines where they are read as one text, which holds none: no word, and no sentence's end."""
BASE = 0x9E3779B97F4A7C15
"""Odd multiplier of the polynomial hash modulo 2 ** 64."""
INVERSE = pow(BASE, -1, 1 << 64)

Column = npt.NDArray[Any]
Unsigned = npt.NDArray[np.uint64]
Item = TypeVar("Item")
_KINDS = (np.int32, np.uint16, np.uint64)


class Words(NamedTuple):
    """The words of a text, in order; each column has one entry a word."""

    lengths: Column
    """Characters; int32."""
    flags: Column
    """uint16."""
    hashes: Column
    """uint64, polynomial of the characters: hash(ab) = hash(a) * BASE ** length(b) + hash(b)."""


Divide = Callable[[str], list[str]]
"""Divides a chunk into words."""
Flag = Callable[[str], int]
"""Flags of a word."""
Mark = Callable[[str], str]
"""What a word means to sentences: O begins one where a T before it ended one, others have no mark."""


class Lexicon:
    """The columns of texts' words, by a memo of each chunk's words."""

    def __init__(self, divide: Divide, flag: Flag, mark: Mark) -> None:
        self._divide, self._flag, self._mark = divide, flag, mark
        self._empty()

    def words(self, text: str) -> Words:
        """The words of a text."""
        parts = [self._columns(window.split()) for window in windows(text)]
        return parts[0] if len(parts) == 1 else Words(*map(np.concatenate, zip(*parts, strict=True)))

    def count(self, text: str) -> int:
        """Number of words of a text."""
        return sum(sum(map(len, self._numbers(window.split()))) for window in windows(text))

    def sentences(self, lines: list[str]) -> int:
        """Number of sentences of lines; each has one or more."""
        return len(lines) + sum(map(self._ends_within, batches(lines, len)))

    def _ends_within(self, lines: list[str]) -> int:
        text = f" {LINE} ".join(lines)
        chunks = text.split()
        if " ".join(chunks) != text:
            # White space that is more than a blank is a word to some tokenizers, between two sentences.
            chunks = [span for span in _SPANS.findall(text) if span != " "]
        self._make_room()
        return "".join(map(self._marks.__getitem__, chunks)).count("TO")

    def _columns(self, chunks: list[str]) -> Words:
        numbers = np.fromiter(chain.from_iterable(self._numbers(chunks)), np.int32)
        self._extend()
        return Words(*(column[numbers] for column in self._table))

    def _numbers(self, chunks: list[str]) -> Iterator[tuple[int, ...]]:
        """The numbers of each chunk's words."""
        self._make_room()
        return map(self._chunks.__getitem__, chunks)

    def _make_room(self) -> None:
        if len(self._chunks) > MEMO:
            self._empty()

    def _empty(self) -> None:
        self._words: list[str] = []
        self._word_numbers = _Memo(self._number)
        """Word -> its place in `_words`."""
        self._chunks = _Memo(lambda chunk: tuple(map(self._word_numbers.__getitem__, self._divide(chunk))))
        """Chunk -> the numbers of its words."""
        self._marks = _Memo(self._marked)
        """Chunk, or white space between two -> its words' marks."""
        self._word_marks = _Memo(self._mark)
        self._chunks[LINE], self._marks[LINE] = (), LINE
        self._known = 0
        """Words that the table has."""
        self._table = Words(*(np.empty(1024, kind) for kind in _KINDS))
        """The columns of every word of the memo, by its number; longer than needed, doubled when full."""

    def _number(self, word: str) -> int:
        self._words.append(word)
        return len(self._words) - 1

    def _marked(self, span: str) -> str:
        words = [span] if span.isspace() else map(self._words.__getitem__, self._chunks[span])
        return "".join(map(self._word_marks.__getitem__, words))

    def _extend(self) -> None:
        """Fills in the columns of the newest words."""
        start, stop = self._known, len(self._words)
        if start == stop:
            return
        if stop > len(self._table.lengths):
            size = max(stop, 2 * len(self._table.lengths))
            self._table = Words(*(np.resize(column, size) for column in self._table))
        words = self._words[start:]
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        flags = np.fromiter(map(self._flag, words), np.uint16, len(words))
        values: tuple[Column, ...] = (lengths, flags, polynomials(words))
        for column, new in zip(self._table, values, strict=True):
            column[start:stop] = new
        self._known = stop


class _Memo(dict[str, Any]):
    """Values by key, each computed when it is first asked for."""

    def __init__(self, compute: Callable[[str], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: str) -> Any:
        value = self[key] = self._compute(key)
        return value


def polynomials(words: list[str]) -> Unsigned:
    """Hash of each word's characters c, the sum of c[i] * BASE ** (length - 1 - i)."""
    hashes = [_polynomials(batch) for batch in batches(words, len)]
    return hashes[0] if len(hashes) == 1 else np.concatenate(hashes)


def _polynomials(words: list[str]) -> Unsigned:
    """All at once: BASE is odd and has an inverse modulo 2 ** 64, so that prefix sums of c[j] / BASE ** j
    hold the sum of any range. A long word is hashed by its halves."""
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    if len(words) == 1 and lengths[0] > WINDOW:
        half = int(lengths[0]) // 2
        one, other = (_polynomials([part]) for part in (words[0][:half], words[0][half:]))
        return one * np.uint64(pow(BASE, int(lengths[0]) - half, 1 << 64)) + other
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    powers, inverses = (_powers(base, len(codes) + 1) for base in (BASE, INVERSE))
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(codes * inverses[:-1], out=sums[1:])
    stops = np.cumsum(lengths)
    return (sums[stops] - sums[stops - lengths]) * powers[stops - 1]


def _powers(base: int, count: int) -> Unsigned:
    """base ** 0, base ** 1, ... modulo 2 ** 64."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def power(exponents: Column) -> Unsigned:
    """BASE ** exponent modulo 2 ** 64, of exponents below 2 ** 31."""
    low, high = _power_tables()
    found = low[exponents & 0xFFFF]
    if len(found) and exponents.max() > 0xFFFF:
        found *= high[exponents >> 16]
    return found


@cache
def _power_tables() -> tuple[Unsigned, Unsigned]:
    """BASE ** n and (BASE ** 2 ** 16) ** n."""
    return _powers(BASE, 1 << 16), _powers(pow(BASE, 1 << 16, 1 << 64), 1 << 15)


def windows(text: str) -> Iterator[str]:
    """The text in pieces of about WINDOW characters, cut where white space stands."""
    if len(text) <= WINDOW:
        yield text
        return
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + WINDOW)
        stop = space.start() if space else len(text)
        yield text[start:stop]
        start = stop


def batches(texts: Iterable[Item], characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The texts, or what has so many characters, in lists of about WINDOW; a longer one stands alone."""
    batch: list[Item] = []
    held = 0
    for text in texts:
        size = characters(text)
        if batch and held + size > WINDOW:
            yield batch
            batch, held = [], 0
        batch.append(text)
        held += size
    yield batch


def stop_word(word: str) -> int:
    """The bit of a stop word, 0 of another."""
    return _STOP_BITS.get(word, 0)


@cache
def white_space() -> Lexicon:
    """Words are what white space separates: the profile `paper`."""
    return Lexicon(lambda chunk: [chunk], _flags, _marks)


def _flags(word: str) -> int:
    letters = _LETTER.search(word) is not None
    symbols = not letters and _DIGIT.search(word) is None
    return stop_word(word.lower()) | ALPHA * letters | SYMBOLS * symbols


def _marks(word: str) -> str:
    """A word ends a sentence by its last character, quotes and brackets apart; one of symbols begins none."""
    return "O" * (_WORD.search(word) is not None) + "T" * (_SENTENCE_END.search(word) is not None)


_SPACE = re.compile(r"\s")
_SPANS = re.compile(r"\s+|\S+")
_LETTER = re.compile(r"[^\W\d_]")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[^\W_]")
_SENTENCE_END = re.compile(r"[.?!。？！][\"'”’)\]]*$")
_STOP_BITS = {word: 1 << bit for bit, word in enumerate(STOP_WORDS)}
