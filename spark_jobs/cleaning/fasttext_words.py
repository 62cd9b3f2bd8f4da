"""fastText's prediction with a memo of words (Joulin et al. 2016, arXiv:1607.01759; 1612.03651 for .ftz).

    text --white space--> words --memo--> sum of a word's vectors [dim] and their number
    mean over all of them [dim] --hierarchical softmax--> label, probability

A word's vectors are its own and those of its character n-grams, found by hash. fastText computes them anew
for every word of every text; here once a distinct word, for all new words of a text at a time. Reads
supervised models of words without word n-grams, quantised, with a hierarchical softmax, as lid.176.ftz is.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MEMO = 1 << 18
"""Distinct words that the memo holds before it is emptied."""
WINDOW = 1 << 19
"""Bytes of a text whose words are held at a time."""
LONGEST = 1 << 12
"""Bytes of a word whose n-grams are counted; of a longer one, those of its first bytes."""
LABEL = b"__label__"
END = b"</s>"
FNV_START, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)

_SPACE = re.compile(rb"\s")
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Prediction(NamedTuple):
    """The likeliest label and its probability."""

    label: str
    probability: float


class Model:
    """A model read from fastText's own file."""

    def __init__(self, path: Path) -> None:
        reader = _Reader(path.read_bytes())
        reader.expect(np.int32, 793712314, "fastText's magic number")
        reader.expect(np.int32, 12, "version of the format")
        settings = reader.array(np.int32, 12)
        self._dim, self._buckets = int(settings[0]), int(settings[8])
        self._least, self._greatest = int(settings[9]), int(settings[10])
        if settings[5] != 1 or settings[6] != 1 or settings[7] != 3:
            raise ValueError(f"{path}: not a supervised model of words with a hierarchical softmax")
        reader.array(np.float64, 1)
        words, labels = self._dictionary(reader)
        self._vectors = _quantised(reader)
        self._paths = _tree([count for _, count in labels])
        self._labels = [name.removeprefix(LABEL).decode() for name, _ in labels]
        reader.expect(np.bool_, 0, "quantised output")
        rows, columns = reader.array(np.int64, 2)
        self._nodes = reader.array(np.float32, rows * columns).reshape(rows, columns).astype(np.float64)
        self._known = {word: number for number, (word, _) in enumerate(words)}
        self._empty()

    def predict(self, text: bytes) -> Prediction:
        """The likeliest label of a text in UTF-8."""
        total = sum((self._sum(window.split()) for window in _windows(text)), self._sum([END]))
        mean = total[:-1] / max(total[-1], 1)
        right = 1 / (1 + np.exp(-(self._nodes[: len(self._paths[0][0])] @ mean)))
        lefts, rights = self._paths
        logs = lefts @ np.log(1 - right + 1e-5) + rights @ np.log(right + 1e-5)
        best = int(logs.argmax())
        return Prediction(self._labels[best], min(math.exp(logs[best]), 1.0))

    def _sum(self, words: list[bytes]) -> Floats:
        """Sum of the words' vectors, and their number: [dim + 1]."""
        new = set(words).difference(self._numbers)
        if len(self._numbers) + len(new) > MEMO:
            self._empty()
            new = set(words)
        if new:
            self._learn(list(new))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        total: Floats = self._sums[numbers].sum(axis=0)
        return total

    def _dictionary(self, reader: _Reader) -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
        size, _, _ = reader.array(np.int32, 3)
        _, pruned = reader.array(np.int64, 2)
        words: list[tuple[bytes, int]] = []
        labels: list[tuple[bytes, int]] = []
        for _ in range(size):
            name = reader.text()
            count, kind = int(reader.array(np.int64, 1)[0]), int(reader.array(np.int8, 1)[0])
            (labels if kind else words).append((name, count))
        if pruned < 0:
            self._rows = np.arange(self._buckets) + len(words)
        else:
            pairs = reader.array(np.int32, 2 * int(pruned)).reshape(-1, 2)
            self._rows = np.full(self._buckets, -1)
            self._rows[pairs[:, 0]] = pairs[:, 1] + len(words)
        return words, labels

    def _empty(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._sums = np.zeros((1024, self._dim + 1))
        """Sum of each word's vectors, and their number."""

    def _learn(self, words: list[bytes]) -> None:
        first, stop = len(self._numbers), len(self._numbers) + len(words)
        if stop > len(self._sums):
            self._sums = np.resize(self._sums, (max(stop, 2 * len(self._sums)), self._dim + 1))
        self._numbers.update(zip(words, range(first, stop), strict=True))
        sums = self._sums[first:stop]
        sums[:] = 0
        owners, rows = self._ngrams(words)
        known = [(place, self._known[word]) for place, word in enumerate(words) if word in self._known]
        if known:
            places, numbers = np.array(known).T
            owners, rows = np.concatenate((owners, places)), np.concatenate((rows, numbers))
        np.add.at(sums, owners, np.column_stack((self._vectors[rows], np.ones(len(rows)))))

    def _ngrams(self, words: list[bytes]) -> tuple[Integers, Integers]:
        """(place of the word, row of the matrix) of every n-gram of some words that the model has."""
        framed = [
            b"" if word.startswith(LABEL) or word == END else b"<%b>" % word[:LONGEST] for word in words
        ]
        data = np.frombuffer(b"".join(framed) + bytes(4 * self._greatest), np.uint8)
        sizes = np.fromiter(map(len, framed), np.int64, len(framed))
        owner = np.repeat(np.arange(len(words)), sizes)
        stops = np.repeat(np.cumsum(sizes), sizes)
        starts = np.flatnonzero(data[: len(owner)] & 0xC0 != 0x80)
        # fastText widens a byte as a signed one.
        wide = data.astype(np.int8).astype(np.int32).view(np.uint32)
        hashes, place = np.full(len(starts), FNV_START), starts
        limit, origin = stops[starts], starts
        firsts = np.concatenate(([0], np.cumsum(sizes)[:-1]))[owner[starts]]
        found = []
        for size in range(1, self._greatest + 1):
            inside = place < limit
            hashes, place, limit = hashes[inside], place[inside], limit[inside]
            origin, firsts = origin[inside], firsts[inside]
            hashes, place = (hashes ^ wide[place]) * FNV_PRIME, place + 1
            while (more := (place < limit) & (data[place] & 0xC0 == 0x80)).any():
                hashes = np.where(more, (hashes ^ wide[place]) * FNV_PRIME, hashes)
                place = place + more
            # A frame's end alone is no n-gram.
            wanted = (size > 1) | ((origin != firsts) & (place != limit))
            if size >= self._least:
                rows = self._rows[hashes[wanted] % np.uint32(self._buckets)]
                found.append((owner[origin[wanted]][rows >= 0], rows[rows >= 0]))
        owners, rows = map(np.concatenate, zip(*found, strict=True))
        return owners, rows


def _windows(text: bytes) -> Iterator[bytes]:
    """The text in pieces of about WINDOW bytes, cut at blanks and line ends."""
    start = 0
    while len(text) - start > WINDOW:
        cut = _SPACE.search(text, start + WINDOW)
        stop = cut.start() if cut else len(text)
        yield text[start:stop]
        start = stop
    yield text[start:]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def array(self, kind: Any, count: int) -> npt.NDArray[Any]:
        size = np.dtype(kind).itemsize * int(count)
        return np.frombuffer(self._stream.read(size), kind)

    def text(self) -> bytes:
        """A text that a zero byte ends."""
        start, view = self._stream.tell(), self._stream.getbuffer()
        stop = start + bytes(view[start : start + 4096]).index(0)
        view.release()
        return self._stream.read(stop - start + 1)[:-1]

    def expect(self, kind: Any, value: int, what: str) -> None:
        if (found := int(self.array(kind, 1)[0])) != value:
            raise ValueError(f"{what} is {found}, expected {value}")


def _quantised(reader: _Reader) -> Floats:
    """The input matrix: product quantisation of each row, times its quantised norm."""
    reader.expect(np.bool_, 1, "quantised input")
    with_norm = bool(reader.array(np.bool_, 1)[0])
    rows, columns = map(int, reader.array(np.int64, 2))
    codes = reader.array(np.uint8, int(reader.array(np.int32, 1)[0]))
    matrix = _product(reader, codes.reshape(rows, -1), columns)
    if with_norm:
        norms = reader.array(np.uint8, rows)
        matrix = matrix * _product(reader, norms.reshape(rows, 1), 1)
    return matrix.astype(np.float64)


def _product(reader: _Reader, codes: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.float32]:
    dim, parts, width, last = map(int, reader.array(np.int32, 4))
    centroids = reader.array(np.float32, dim * 256)
    found = []
    for part in range(parts):
        size = last if part == parts - 1 else width
        start = part * 256 * width
        found.append(centroids[start : start + 256 * size].reshape(256, size)[codes[:, part]])
    return np.concatenate(found, axis=1)[:, :columns]


def _tree(counts: list[int]) -> tuple[Floats, Floats]:
    """The labels' Huffman tree: for each label, which inner nodes its path leaves to the left, and right."""
    labels = len(counts)
    weight = counts + [10**15] * (labels - 1)
    parent, is_right = [0] * (2 * labels - 1), [False] * (2 * labels - 1)
    leaf, node = labels - 1, labels
    for inner in range(labels, 2 * labels - 1):
        children = []
        for _ in range(2):
            if leaf >= 0 and weight[leaf] < weight[node]:
                children.append(leaf)
                leaf -= 1
            else:
                children.append(node)
                node += 1
        weight[inner] = weight[children[0]] + weight[children[1]]
        parent[children[0]] = parent[children[1]] = inner
        is_right[children[1]] = True
    paths = np.zeros((2, labels, labels - 1))
    for label in range(labels):
        at = label
        while at != 2 * labels - 2:
            paths[int(is_right[at]), label, parent[at] - labels] = 1
            at = parent[at]
    return paths[0], paths[1]
