"""The dataset's report: one file that opens offline, with the figures of the profile, none of it markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.artifacts.manifest import Output
from spark_jobs.profiling import Sample
from spark_jobs.statistics import ZERO
from tests.validation.test_gates import GOOD
from validation.report.dataset import render
from validation.report.page import bar, counts
from validation.report.plots import histogram

SHARDS = Output(
    digest="5" * 64,
    documents=1000,
    tokens=250_000,
    bytes=1_000_000,
    facts={
        "splits": {"train": {"tokens": 240_000}, "held_out": {"tokens": 10_000}},
        "sources": {"books": 40_000, "web": 200_000},
        "lengths": {"7": 300, "8": 500, "10": 200},
    },
)
VERDICTS = {
    "corpus_gate": {"passed": True, "failed": [], "warnings": ["drift_bytes is 0.12"], "notes": []},
    "shard_gate": {"passed": True, "failed": [], "warnings": [], "notes": []},
}
SAMPLES = (
    Sample(rule="gopher.words", id="a1", text="<script>alert('x')</script> & more"),
    Sample(rule="kept", id="b2", text=None),
)
PROFILE = GOOD.model_copy(update={"samples": SAMPLES})


class Tags(HTMLParser):
    """Checks that every tag is closed, and gathers names, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.said: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in {"meta", "br", "html"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data)


def page(**changes) -> Tags:
    found = Tags(render(PROFILE.model_copy(update=changes), SHARDS, VERDICTS, GOOD).decode())
    assert found.open == []
    return found


def test_the_report_opens_offline_and_runs_nothing():
    text = render(PROFILE, SHARDS, VERDICTS, GOOD).decode()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    found = page()
    assert not found.names & {"script", "link", "img", "iframe", "object", "form"}
    assert not [name for name in found.attributes if name.startswith("on")]
    assert "prefers-color-scheme:dark" in text


def test_the_report_says_what_the_profile_and_the_shards_say():
    said = "\n".join(page().said)
    for wanted in ("250,000", "240,000", "200,000", "1,000,000", "gopher.words", "encoding", "books", "en"):
        assert wanted in said
    assert "warning: drift_bytes is 0.12" in said
    assert "<script>alert('x')</script> & more" in said  # as text
    assert "(no text)" in said


def test_without_a_baseline_the_report_says_so():
    said = "".join(Tags(render(PROFILE, SHARDS, VERDICTS).decode()).said)
    assert "Nothing was published before" in said


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_text_of_a_document_becomes_markup(rule, text):
    before = page()
    hostile = page(
        samples=(*SAMPLES, Sample(rule=rule or "r", id="c3", text=text)), languages={text or "en": 1000}
    )
    assert hostile.names == before.names
    assert hostile.attributes == before.attributes


@pytest.mark.parametrize("now", [{}, {ZERO: 3}, {5: 1}, {-20: 1, 0: 3, 7: 9}, {0: 5, 8: 1, 80: 2}])
@pytest.mark.parametrize("before", [None, {}, {ZERO: 1, 9: 2}])
def test_any_histogram_is_drawn_within_its_frame(now, before):
    drawn = histogram("x", now, before)
    assert "nan" not in drawn
    for y in re.findall(r' y="([\d.-]+)"', drawn):
        assert 0 <= float(y) <= 136
    positive = [bin_ for bin_ in now if bin_ != ZERO or now[bin_]]
    assert drawn.count('class="bar"') == len(positive)


def test_counts_beyond_the_most_are_shown_as_one():
    drawn = counts(("rule", "records"), {f"r{n}": n + 1 for n in range(40)}, most=30)
    assert "10 others" in drawn
    assert "55" in drawn
    assert 'width="50.0"' in bar(0.5)
