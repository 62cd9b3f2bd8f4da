"""Text, language and rules. Every registered rule has golden cases; one without fails here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import spark_jobs.cleaning.gopher  # noqa: F401  registers its rules
from bloomery.config.cleaning import LANGUAGES, CleanConfig, GopherConfig
from spark_jobs.cleaning.language import identify
from spark_jobs.cleaning.rules import RULES, Text, bounds, judge, measure, rule
from spark_jobs.cleaning.text import REPAIR, clean_text
from tests.spark_jobs.corpus import GERMAN, prose

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["rules"]


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_has_golden_cases(name):
    cases = GOLDEN.get(name, [])
    assert len(cases) >= 2, f"rule {name} has no golden cases in golden.json"
    for text, value in cases:
        found = RULES[name].measure(Text(text))
        assert math.isnan(found) if value is None else found == pytest.approx(value, abs=1e-12), text


def test_every_rule_is_bounded_by_the_config_and_every_bound_has_a_rule():
    config = CleanConfig()
    for name in RULES:
        low, high = bounds(name, config)
        assert math.isfinite(low) or math.isfinite(high), name
    bounded = {
        f"gopher.{field.removeprefix('min_').removeprefix('max_')}" for field in GopherConfig.model_fields
    }
    assert bounded == {name for name in RULES if name.startswith("gopher.")}


def test_judging_names_the_rule_the_value_and_the_threshold():
    config = CleanConfig()
    assert judge(measure(Text(prose(1))), config) is None
    assert judge(measure(Text("three short words")), config) == ("gopher.words", 3, 50)
    assert judge(measure(Text("# " * 40 + prose(1))), config).rule == "gopher.hash_ratio"
    strict = CleanConfig(gopher=GopherConfig(max_mean_word_length=3.5))
    verdict = judge(measure(Text(prose(1))), strict)
    assert (verdict.rule, verdict.threshold) == ("gopher.mean_word_length", 3.5) and verdict.value > 3.5
    # No words, no measure: only the count judges.
    assert judge(measure(Text("")), CleanConfig(gopher=GopherConfig(min_words=0, min_stop_words=0))) is None


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(AssertionError, match=r"gopher\.words"):
        rule("gopher.words", "")(lambda text: 0.0)


@pytest.mark.parametrize(
    "raw, text",
    [
        ("cafÃ© \u201cquoted\u201d &amp; kept", "café \u201cquoted\u201d &amp; kept"),
        ("e\u0301", "é"),
        ("a\x00b\x1b[31mc\r\nd", "abc\nd"),
        ("  blank  ", "blank"),
        ("plain", "plain"),
    ],
)
def test_repair(raw, text):
    assert clean_text(raw, "text/plain") == text


def test_repair_is_ftfys(tmp_path):
    import ftfy

    for text in ("naÃ¯ve\nplain line\ncafÃ©", GERMAN, prose(3), "über\r\nalles\x07"):
        assert clean_text(text, "text/plain") == ftfy.fix_text(text, REPAIR).strip()


def test_html():
    body = "<nav>menu</nav><main><p>One</p><p>Two</p></main>"
    page = f"<html><head><style>p {{}}</style></head><body>{body}</body></html>"
    assert clean_text(page, "text/html").split() == ["One", "Two"]


def test_language():
    assert identify(prose(1)).code == "en" and identify(prose(1)).score > 0.9
    assert identify(GERMAN).code == "de"
    assert identify("12 + 34 = 46") is None
    # The whole text is read, not its first 80 characters.
    assert identify("The end of it. " * 5 + GERMAN).code == "de"


def test_unknown_languages_are_refused_when_the_config_is_read():
    with pytest.raises(ValueError, match="english"):
        CleanConfig(languages=("english",))
    assert len(LANGUAGES) == 176 and CleanConfig(languages=("de", "zh")).languages == ("de", "zh")
