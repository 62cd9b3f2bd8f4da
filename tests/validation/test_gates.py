"""The suite judges a profile; what raises is no verdict; the report opens offline."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from bloomery.config.corpus import CorpusGateConfig
from validation.gates.corpus import checks
from validation.gates.report import render
from validation.gates.suite import Check, ExpectationError, judge

GOOD = {
    "documents": 1000.0,
    "held_out": 50.0,
    "null_texts": 0.0,
    "repeated_ids": 0.0,
    "quarantined": 0.01,
    "dropped": 0.4,
    "drift": 0.1,
}
POLICY = CorpusGateConfig()


def judged(**changes: float) -> dict[str, bool]:
    profile = pd.DataFrame([GOOD | changes])
    return {j.check.column: j.passed for j in judge(profile, checks(POLICY, baseline=True))}


def test_a_sound_profile_passes_every_check():
    assert all(judged().values())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("documents", POLICY.min_documents - 1),
        ("held_out", 0),
        ("null_texts", 1),
        ("repeated_ids", 1),
        ("quarantined", POLICY.max_quarantined * 1.01),
        ("dropped", POLICY.max_dropped * 1.01),
        ("drift", POLICY.max_row_drift * 1.01),
        ("dropped", float("nan")),
        ("drift", float("nan")),
    ],
)
def test_each_fault_fails_its_own_check_alone(column, value):
    verdicts = judged(**{column: float(value)})
    assert [name for name, passed in verdicts.items() if not passed] == [column]


def test_without_a_baseline_there_is_no_drift_to_judge():
    assert "drift" not in {check.column for check in checks(POLICY, baseline=False)}


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
