"""Mixtures: exact to the token, within the caps, or refused with the numbers that would do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.config.corpus import MixtureConfig, MixtureSource
from spark_jobs.mixture import MixtureError, plan

HELD = {"web": 1000, "code": 200}


def mixture(web: float, code: float, **about: float) -> MixtureConfig:
    sources = (MixtureSource(name="web", weight=web), MixtureSource(name="code", weight=code))
    return MixtureConfig(sources=sources, **about)


def test_without_weights_every_token_is_taken_once():
    shares = plan(MixtureConfig(), HELD)
    assert {name: (share.tokens, share.epochs) for name, share in shares.items()} == {
        "code": (200, 1.0),
        "web": (1000, 1.0),
    }


def test_weights_repeat_and_leave_out():
    shares = plan(mixture(1, 1, tokens=1200), HELD)
    assert (shares["web"].tokens, shares["code"].tokens) == (600, 600)
    assert (shares["web"].epochs, shares["code"].epochs) == (0.6, 3.0)
    assert plan(mixture(1, 0), HELD)["code"].tokens == 0


def test_an_impossible_plan_says_what_is_possible():
    with pytest.raises(
        MixtureError, match=r"code: 50\.0% of 4,000 tokens are 2,000, 10\.00 epochs of its 200"
    ) as told:
        plan(mixture(1, 1, tokens=4000), HELD)
    assert "web" not in str(told.value).split("Remedy")[0]
    possible = int(re.search(r"tokens to ([\d,]+)", str(told.value)).group(1).replace(",", ""))
    assert possible == 1600 and plan(mixture(1, 1, tokens=possible), HELD)["code"].epochs == 4.0
    with pytest.raises(MixtureError):
        plan(mixture(1, 1, tokens=possible + 4), HELD)


def test_wrong_names_are_told():
    with pytest.raises(MixtureError, match="names books"):
        plan(MixtureConfig(sources=(MixtureSource(name="books", weight=1),)), HELD)
    with pytest.raises(MixtureError, match="no weight for web"):
        plan(MixtureConfig(sources=(MixtureSource(name="code", weight=1),)), HELD)
    with pytest.raises(MixtureError, match="weight 0"):
        plan(mixture(0, 0), HELD)
    with pytest.raises(ValueError, match="named twice: a"):
        MixtureConfig(sources=(MixtureSource(name="a", weight=1), MixtureSource(name="a", weight=2)))


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.integers(1, 10**13), st.floats(0.01, 100)), min_size=1
    ),
    st.integers(1, 10**13),
)
def test_a_plan_is_exact_and_within_its_caps_or_refused(sources, budget):
    chosen = tuple(MixtureSource(name=name, weight=weight) for name, (_, weight) in sources.items())
    held = {name: tokens for name, (tokens, _) in sources.items()}
    try:
        shares = plan(MixtureConfig(sources=chosen, tokens=budget), held)
    except MixtureError as refused:
        assert "max_epochs 4" in str(refused)
        return
    assert sum(share.tokens for share in shares.values()) == budget
    whole = sum(weight for _, weight in sources.values())
    for name, share in shares.items():
        assert abs(share.tokens - budget * sources[name][1] / whole) <= 1 + budget * 1e-12
        assert share.tokens <= 4 * held[name] + 1
