"""The encoder gives the tokenizer's own ids, for any text and any tokenizer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs import encoder
from spark_jobs.encoder import SPLIT, Encoder, splits_as_gpt2, windows
from spark_jobs.tokenizer import SEPARATOR, load, train
from tests.spark_jobs.corpus import GERMAN, prose

TOKENIZER = train([*map(prose, range(50)), GERMAN, "the cat's 12 hats, they've  \n\n gone"], 600)
DTYPE = np.dtype("<u2")
ENCODER = Encoder(TOKENIZER, DTYPE)
NEWER = "\U00018cd6"
"""Unassigned, or a letter: by the version of Unicode."""


BYTES = json.loads(TOKENIZER)["pre_tokenizer"]


def expected(text, data=TOKENIZER):
    tokenizer = load(data)
    return [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id(SEPARATOR)]


def ids(text, made=ENCODER):
    return np.frombuffer(made.encode(text), DTYPE).tolist()


def changed(**parts):
    return json.dumps(json.loads(TOKENIZER) | parts).encode()


snippets = st.sampled_from(
    [
        *(
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'",
            "'s",
            "'LL",
            "a",
            "Zoë",
            "1",
            "½",
            "٣",
            "$",
            "…",
            "é",
            "e\u0301",
        ),
        *(
            "\u00a0",
            "\u2028",
            "\u200d",
            "中文",
            "👍🏽",
            NEWER,
            "\0",
            SEPARATOR,
            "the cat",
            "they've",
            "\ufeff",
        ),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(snippets, max_size=25).map("".join)))
def test_ids_are_the_tokenizers(text):
    assert splits_as_gpt2(json.loads(TOKENIZER))
    assert ids(text) == expected(text)


def test_ids_are_the_tokenizers_for_every_character():
    """Each with neighbours of every kind; those of which Unicode's versions differ as well."""
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000 and point % 7 == 0]
    for start in range(0, len(points), 500):
        text = "".join(f"a{chr(p)}b 1{chr(p)}2 !{chr(p)} {chr(p)}\n" for p in points[start : start + 500])
        assert ids(text) == expected(text), hex(points[start])


def test_a_text_longer_than_a_window_and_a_full_memo(monkeypatch):
    monkeypatch.setattr(encoder, "WINDOW", 7)
    monkeypatch.setattr(encoder, "MEMO", 1000)
    made = Encoder(TOKENIZER, DTYPE)
    for text in [prose(1), "a  b   c\n\n\n d\n e  ", " " * 50, "x" * 50, "'s 's  's", ""]:
        assert "".join(windows(text)) == text
        assert [p for w in windows(text) for p in SPLIT.findall(w)] == SPLIT.findall(text)
        assert ids(text, made) == expected(text)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": BYTES | {"add_prefix_space": True}},
        {"pre_tokenizer": BYTES | {"use_regex": False}},
        {
            "added_tokens": [
                *json.loads(TOKENIZER)["added_tokens"],
                {
                    "id": 600,
                    "content": "the cat",
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": False,
                },
            ]
        },
    ],
    ids=["normalizer", "split", "prefix space", "no split", "added token"],
)
def test_a_tokenizer_of_another_kind_encodes_texts_itself(parts):
    data = changed(**parts)
    assert not splits_as_gpt2(json.loads(data))
    text = "The cat sat on the cat's mat, 12 times. " + prose(3)
    assert ids(text, Encoder(data, DTYPE)) == expected(text, data)


def test_a_tokenizer_that_truncates_or_pads_does_neither():
    """A published tokenizer.json may: texts would be cut, or filled up to the longest."""
    tokenizer = load(TOKENIZER)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=100)
    data = tokenizer.to_str().encode()
    assert ids(prose(1), Encoder(data, DTYPE)) == expected(prose(1))
    assert len(load(data).encode_batch_fast([prose(1)], add_special_tokens=False)[0].ids) > 100
