"""The suite judges a profile; what raises is no verdict; the report opens offline."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bloomery.config.gates import CorpusGateConfig, Limits
from spark_jobs.profiling import CorpusProfile, Fate, Origin
from validation.gates.corpus import judge_profile
from validation.gates.drift import divergence, psi
from validation.gates.report import render
from validation.gates.suite import Check, ExpectationError, judge

POLICY = CorpusGateConfig()
HISTOGRAM = tuple((8 * 9 + bin_, 100) for bin_ in range(10))  # from 512 characters on
GOOD = CorpusProfile(
    documents=1000,
    size=1_000_000,
    words=150_000,
    empty=0,
    mojibake=0,
    repeated_ids=0,
    repeated_contents=0,
    pii={"": 0, "email": 0},
    items={},
    contaminated=0,
    fates=(
        Fate(stage="", status="kept", rule="", records=1000, bytes=1_000_000),
        Fate(stage="clean", status="dropped", rule="gopher.words", records=980, bytes=100_000),
        Fate(stage="ingest", status="quarantined", rule="encoding", records=20, bytes=1000),
    ),
    sources={
        "web": Origin(records=1900, documents=900, bytes=900_000),
        "books": Origin(records=100, documents=100, bytes=100_000),
    },
    languages={"en": 1000},
    splits={"train": 950, "held_out": 50},
    nulls={"url": 100, "date": 0},
    histograms={"characters": HISTOGRAM, "bytes": HISTOGRAM},
    samples=(),
)


def fates(kept: int, dropped: int, quarantined: int) -> dict[str, tuple[Fate, ...]]:
    counts = (kept, dropped, quarantined)
    changed = [f.model_copy(update={"records": n}) for f, n in zip(GOOD.fates, counts, strict=True)]
    return {"fates": tuple(changed)}


def judged(baseline: CorpusProfile | None = GOOD, **changes: Any) -> dict[str, str]:
    """What is not as it should be: check -> severity."""
    judgements = judge_profile(GOOD.model_copy(update=changes), baseline, POLICY)
    found = [(j.check.column, j.check.severity) for j in judgements if not j.passed]
    return dict(sorted(found, key=lambda pair: pair[1], reverse=True))


def test_a_sound_profile_passes_every_check():
    assert judged() == {}


@pytest.mark.parametrize(
    ("check", "severity", "changes"),
    [
        ("documents", "critical", {"documents": 90, **fates(90, 980, 20)}),
        ("held_out", "critical", {"splits": {"train": 995, "held_out": 5}}),
        ("unaccounted", "critical", {"documents": 999}),
        ("unaccounted", "critical", {"documents": 1001}),
        ("empty", "critical", {"empty": 1}),
        ("repeated_ids", "critical", {"repeated_ids": 1}),
        ("repeated", "warning", {"repeated_contents": 1}),
        ("repeated", "critical", {"repeated_contents": 2}),
        ("short", "warning", {"histograms": {"characters": ((0, 60), *HISTOGRAM)}}),
        ("short", "critical", {"histograms": {"characters": ((0, 300), *HISTOGRAM)}}),
        ("no_language", "critical", {"languages": {"en": 940, "": 60}}),
        ("mojibake", "warning", {"mojibake": 11}),
        ("mojibake", "critical", {"mojibake": 31}),
        ("pii", "warning", {"pii": {"": 1, "email": 1}}),
        ("pii", "critical", {"pii": {"": 6, "email": 6}}),
        ("contaminated", "critical", {"contaminated": 1, "items": {"gsm8k/1": 1}}),
        ("quarantined", "warning", fates(1000, 960, 40)),
        ("quarantined", "critical", fates(1000, 890, 110)),
        ("dropped", "critical", fates(1000, 39_000, 20)),
        ("drift_documents", "warning", {"documents": 880, **fates(880, 862, 18)}),
        ("drift_documents", "critical", {"documents": 1310, **fates(1310, 1284, 26)}),
        ("drift_bytes", "warning", {"size": 1_110_000}),
        ("drift_bytes", "critical", {"size": 690_000}),
        ("drift_psi", "critical", {"histograms": {"characters": HISTOGRAM, "bytes": HISTOGRAM[:6]}}),
        ("drift_languages", "warning", {"languages": {"en": 940, "de": 60}}),
        ("drift_languages", "critical", {"languages": {"en": 800, "de": 200}}),
        ("drift_rules", "warning", fates(1000, 480, 20)),
        ("drift_rules", "critical", fates(1000, 200, 20)),
        ("drift_nulls", "warning", {"nulls": {"url": 185, "date": 0}}),
        ("drift_nulls", "critical", {"nulls": {"url": 100, "date": 150}}),
        ("drift_vanished", "critical", {"sources": {"web": GOOD.sources["web"]}}),
        (
            "drift_sources",
            "critical",
            {"sources": {n: o.model_copy(update={"documents": 500}) for n, o in GOOD.sources.items()}},
        ),
    ],
)
def test_each_fault_fails_its_own_check(check, severity, changes):
    assert judged(**changes)[check] == severity


def test_without_a_baseline_there_is_no_drift_to_judge():
    assert judged(baseline=None, size=1) == {}


def test_nothing_at_all_passes_no_fraction():
    empty = {"documents": 0, "splits": {}, "fates": (), "languages": {}, "histograms": {}}
    failed = judged(baseline=None, **empty)
    assert {"documents", "repeated", "short", "mojibake", "pii", "quarantined", "dropped"} <= set(failed)


def test_a_failure_names_what_it_is_greatest_for():
    changes = {"pii": {"": 6, "email": 1, "ip": 5}}
    lines = [j.line() for j in judge_profile(GOOD.model_copy(update=changes), None, POLICY) if not j.passed]
    assert any("of survivors hold personal data (ip)" in line for line in lines)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 40), st.integers(1, 10_000), min_size=1))
def test_what_has_not_changed_has_not_drifted(histogram):
    assert psi(histogram, histogram) == 0
    named = {str(bin_): count for bin_, count in histogram.items()}
    assert divergence(named, named) == 0


@settings(deadline=None)
@given(st.integers(0, 1 << 31), st.integers(100, 5000), st.integers(1, 30))
def test_two_samples_of_one_population_have_not_drifted(seed, size, kinds):
    draw = np.random.default_rng(seed)
    weights = draw.dirichlet(np.ones(kinds))
    one, other = (Counter(draw.choice(kinds, n, p=weights).tolist()) for n in (size, size * 2))
    assert psi(one, other) < POLICY.drift.psi.warn
    assert divergence(one, other) < POLICY.drift.sources.warn


def test_drift_figures_are_those_of_the_textbook():
    """n is so great that nothing is chance; half of the documents moved by one bin of four."""
    n = 10**9
    before, now = dict.fromkeys(range(4), n), {0: n // 2, 1: n, 2: n, 3: n + n // 2}
    expected = (0.125 - 0.25) * np.log(0.125 / 0.25) + (0.375 - 0.25) * np.log(0.375 / 0.25)
    assert psi(now, before) == pytest.approx(expected, rel=1e-6)
    assert divergence({"a": n}, {"b": n}) == pytest.approx(1, rel=1e-6)


def test_a_warning_bound_beyond_the_blocking_one_is_refused():
    with pytest.raises(ValidationError, match=r"warn 0\.5 is more than block 0\.1"):
        Limits(warn=0.5, block=0.1)


def test_one_bad_shard_of_many_fails_and_is_shown():
    profile = pd.DataFrame({"damaged": [0.0, 0.0, 2.0]})
    (judgement,) = judge(profile, [Check("damaged", "damaged files", at_most=0)])
    assert (judgement.passed, judgement.observed) == (False, 2.0)
    assert judgement.line() == "damaged is 2, allowed <= 0 (damaged files)"


def test_an_expectation_that_raises_gives_no_verdict():
    with pytest.raises(ExpectationError, match="could not be judged") as error:
        judge(pd.DataFrame({"present": [1.0]}), [Check("absent", "not there", at_most=0)])
    assert error.value.retry


def test_a_warning_fails_no_gate_and_shows_as_one():
    (judgement,) = judge(pd.DataFrame({"x": [2.0]}), [Check("x", "rare", at_most=1, severity="warning")])
    page = render("gate", {"x": "digest"}, [judgement], {}).decode()
    assert not judgement.passed
    assert 'gate: <span class="pass">passed' in page
    assert 'class="warn">warn' in page


def test_the_report_is_one_file_that_opens_offline_and_escapes_what_it_shows():
    (judgement,) = judge(pd.DataFrame({"x": [2.0]}), [Check("x", "<script>alert(1)</script>", at_most=1)])
    page = render("gate", {"x": "digest"}, [judgement], {"Dropped": {"<b>rule</b>": 3}}).decode()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert "<script>" not in page
    assert "<b>rule" not in page
    assert "did not pass" in page
