"""Token ids of texts, several times as fast as the tokenizer itself, with the same ids.

    "The cat sat."  --GPT-2's split-->  "The", " cat", " sat", "."  --memo-->  ids of each, joined

Byte-level BPE (Radford et al. 2019, section 2.2) merges within the pieces of a split and never across, so
each distinct piece is encoded once in a worker. The split here is that of `regex`, whose Unicode may be newer
than the tokenizer's: a character that the two take for different things sends its text to the tokenizer
whole, as does a tokenizer of another kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import regex

from spark_jobs.tokenizer import SEPARATOR, load

SPLIT = regex.compile(
    r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", regex.VERSION0
)
"""GPT-2's, as the pre-tokenizer ByteLevel of `tokenizers` has it."""
WINDOW = 1 << 19
"""Characters of a text whose pieces are held at a time."""
MEMO = 64 << 20
"""Bytes that the memo holds before it is emptied."""
ENTRY = 200
"""Bytes of an entry of the memo, its characters apart."""

_CUT = regex.compile(r"(?<=\S) ")
"""A blank behind something else begins a piece, whatever stands around."""


class Encoder:
    """Encodes texts by one tokenizer.

    Args:
        tokenizer: tokenizer.json.
        dtype: of the ids.

    Raises:
        TokenizerError: a tokenizer of no use.
    """

    def __init__(self, tokenizer: bytes, dtype: np.dtype[Any]) -> None:
        self._tokenizer, self._dtype = load(tokenizer), dtype
        self._end = np.array([self._tokenizer.token_to_id(SEPARATOR)], dtype).tobytes()
        self._by_pieces = splits_as_gpt2(json.loads(tokenizer))
        self._alike: dict[str, bool] = {}
        """Whether the split takes a character for what the tokenizer takes it for."""
        self._empty()

    def encode(self, text: str) -> bytes:
        """Ids of a text and of the separator, little-endian."""
        if self._by_pieces and self._splits(text):
            return b"".join([*map(self._pieces, windows(text)), self._end])
        return self._encode([text])[0] + self._end

    def _pieces(self, text: str) -> bytes:
        pieces = SPLIT.findall(text)
        new = list(set(pieces).difference(self._memo))
        if new:
            self._held += sum(map(len, new)) + ENTRY * len(new)
            if self._held > MEMO:
                self._empty()
                new = list(set(pieces))
            self._memo.update(zip(new, self._encode(new), strict=True))
        return b"".join(map(self._memo.__getitem__, pieces))

    def _encode(self, texts: list[str]) -> list[bytes]:
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, self._dtype).tobytes() for encoding in found]

    def _splits(self, text: str) -> bool:
        characters = set(text)
        for new in characters.difference(self._alike):
            around = f"a{new}a1{new}1 {new}!{new}\n"  # a letter, a number, a blank, or none of them
            theirs = [span for _, span in self._tokenizer.pre_tokenizer.pre_tokenize_str(around)]
            self._alike[new] = theirs == [match.span() for match in SPLIT.finditer(around)]
        return all(map(self._alike.__getitem__, characters))

    def _empty(self) -> None:
        self._memo: dict[str, bytes] = {}
        self._held = 0


def splits_as_gpt2(tokenizer: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is BPE over GPT-2's split, and nothing else looks at a text."""
    split, model = tokenizer["pre_tokenizer"] or {}, tokenizer["model"]
    return bool(
        tokenizer["normalizer"] is None
        and (split.get("type"), split.get("add_prefix_space")) == ("ByteLevel", False)
        and split.get("use_regex", True)
        and (model["type"], model["dropout"]) == ("BPE", None)
        and all(token["special"] for token in tokenizer["added_tokens"])
    )


def windows(text: str) -> Iterator[str]:
    """The text in pieces of about WINDOW characters, cut where the split cuts it, too."""
    start = 0
    while len(text) - start > WINDOW:
        cut = _CUT.search(text, start + WINDOW)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
