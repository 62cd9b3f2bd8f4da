"""Bits per byte: the loss in a unit that does not depend on the tokenizer.

bits per byte = sum of the targets' losses in nats / ln 2 / bytes of text that the targets stand for
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.errors import BloomeryError


def token_bytes(tokenizer: bytes) -> npt.NDArray[np.int64]:
    """Bytes of text that each id of a byte-level tokenizer.json stands for, special tokens for none: [V].

    Raises:
        BloomeryError: the tokenizer is not byte-level, so an id has no fixed number of bytes.
    """
    described: dict[str, Any] = json.loads(tokenizer)
    if "ByteLevel" not in json.dumps([described.get("decoder"), described.get("pre_tokenizer")]):
        raise BloomeryError("the tokenizer is not byte-level", "use one trained by the stage tokenizer")
    sizes = {index: len(token) for token, index in described["model"]["vocab"].items()}  # one letter a byte
    for added in described.get("added_tokens", []):
        sizes[added["id"]] = 0 if added["special"] else len(added["content"].encode())
    lengths = np.zeros(max(sizes) + 1, np.int64)
    for index, size in sizes.items():
        lengths[index] = size
    return lengths


class Score(NamedTuple):
    """A loss over some targets."""

    nats: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Mean nats a token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Mean bits a byte of text; nan where the targets stand for no text."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan
