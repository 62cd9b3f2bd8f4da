"""Personal data: what is found, what is not, and that no text makes the search slow."""

from __future__ import annotations

import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.config.cleaning import Pii
from spark_jobs.cleaning.pii import KINDS, redact

ALL = get_args(Pii)
CASES = [
    ("Write to jane.doe+news@mail.example.org, please.", "Write to <EMAIL>, please."),
    ("at DNS 8.8.8.8 and 2001:4860:4860::8888.", "at DNS <IP> and <IP>."),
    ("call +49 30 901820 or (212) 555-0123 or 212-555-0123", "call <PHONE> or <PHONE> or <PHONE>"),
    ("card 4111 1111 1111 1111, or 378282246310005.", "card <CREDIT_CARD>, or <CREDIT_CARD>."),
    ("IBAN DE89 3704 0044 0532 0130 00 IS MINE", "IBAN <IBAN> IS MINE"),
    ("pay GB29NWBK60161331926819.", "pay <IBAN>."),
    (
        "key AKIAIOSFODNN7EXAMPLE and ghp_16C7e42F292c6912E7710c838347Ae178B4a!",
        "key <API_KEY> and <API_KEY>!",
    ),
]
NOT = [
    "user@localhost, @mention, a@b, x@y.z1",
    "192.168.0.1 10.0.0.1 127.0.0.1 192.0.2.7 ::1 fe80::1 2001:db8::1 fd00::1 999.1.1.1 1.2.3.4.5",
    "12:30:45, std::vector::iterator, 00:1B:44:11:3A:B7",
    "4111 1111 1111 1112 and 0000 0000 0000 0000 and 12345678901234567890",
    "DE89 3704 0044 0532 0130 01, XX89370400440532013000",
    "version 1.2.3, ISBN 978-3-16-148410-0, 2026-11-29, 123-456, 3.14159265",
    "AKIA, sk-learn, ghp_short, sk-" + "a" * 40,
]


@pytest.mark.parametrize("text, redacted", CASES)
def test_found(text, redacted):
    found = redact(text, ALL)
    assert found.text == redacted
    assert sum(found.counts.values()) == redacted.count("<")


@pytest.mark.parametrize("text", NOT)
def test_not_found(text):
    assert redact(text, ALL) == (text, dict.fromkeys(KINDS, 0))


def test_only_the_kinds_that_are_asked_for():
    text = "jane@example.org at 8.8.8.8"
    assert redact(text, ("ip",)) == ("jane@example.org at <IP>", {"ip": 1})
    assert redact(text, ()) == (text, {})


@given(st.text(st.sampled_from("a1@.: -+()AKIDE89\n"), max_size=200))
@settings(max_examples=300, deadline=None)
def test_what_is_redacted_once_is_redacted(text):
    once = redact(text, ALL)
    assert redact(once.text, ALL).text == once.text or sum(redact(once.text, ALL).counts.values()) < 3


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "1",
        "a.",
        "1.",
        "1-",
        "1 ",
        "a@",
        "a@a.",
        ":",
        "a:",
        "A1",
        "DE89 ",
        "+1 ",
        "(1",
        "sk-",
        "-----BEGIN ",
    ],
)
def test_no_text_makes_it_slow(unit):
    """Ten times the text costs about ten times as long, not a hundred."""
    text = unit * (400_000 // len(unit))
    began = time.process_time()
    redact(text, ALL)
    assert time.process_time() - began < 4
