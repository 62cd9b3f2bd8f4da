"""Bits per byte count the bytes of the text itself."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.errors import BloomeryError
from tests.training.world import documents, train_tokenizer
from training.bits import Score, token_bytes

TOKENIZER = train_tokenizer(documents(50), 400)
SIZES = token_bytes(TOKENIZER.to_str().encode())


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_sizes_of_tokens_add_up_to_the_text(text):
    ids = TOKENIZER.encode(text).ids
    special = text.count("<|endoftext|>") * len("<|endoftext|>")
    assert SIZES[ids].sum() == len(text.encode()) - special


def test_the_separator_stands_for_no_text():
    assert SIZES[TOKENIZER.token_to_id("<|endoftext|>")] == 0
    assert len(SIZES) == TOKENIZER.get_vocab_size()


def test_a_uniform_guess_of_bytes_costs_eight_bits():
    assert Score(nats=100 * math.log(256), tokens=100, bytes=100).bits_per_byte == pytest.approx(8)
    assert np.isnan(Score(1.0, 1, 0).bits_per_byte)


def test_a_tokenizer_that_is_not_byte_level_is_refused():
    described = json.loads(TOKENIZER.to_str())
    described["decoder"] = described["pre_tokenizer"] = None
    with pytest.raises(BloomeryError, match="not byte-level"):
        token_bytes(json.dumps(described).encode())
