"""Verdicts in SQL are those on arrays, whatever the signals; a what-if tells what a run would do."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.config.cleaning import (
    ClassifierConfig,
    CleanConfig,
    DocumentConfig,
    GopherConfig,
    PiiConfig,
)
from bloomery.config.run import ConfigError
from spark_jobs.cleaning.signals import SIGNALS, column
from spark_jobs.cleaning.verdicts import checks, first_broken, verdict
from spark_jobs.whatif import KEPT, changed, what_if

EVERYTHING = CleanConfig(
    chain=tuple(
        "document opt_out licence blocklist language gopher "  # noqa: SIM905
        "gopher_repetition c4 refinedweb fineweb pii classifier".split()
    ),
    licences=("mit", "it's \\ free"),
    pii=PiiConfig(max_email=1),
    classifier=ClassifierConfig(min_score=0.3),
)
NAMES = [*map(column, SIGNALS), "language_score"]
SCHEMA = pa.schema(
    [("language", pa.string()), ("licence", pa.string()), *((name, pa.float64()) for name in NAMES)]
)


def good(**changes):
    """Signals that break no bound of EVERYTHING."""
    row = dict.fromkeys(NAMES, 0.0) | {"language": "en", "licence": "mit", "language_score": 1.0}
    for check in checks(EVERYTHING):
        if check.operator == "<":
            row[check.column] = max(row[check.column], check.threshold)
    return row | changes


def judged(rows, config=EVERYTHING):
    names = [*(check.rule for check in checks(config)), KEPT]
    return [names[number] for number in first_broken(pa.Table.from_pylist(rows, SCHEMA), config)]


def test_the_first_broken_check_of_the_chain_is_the_verdict():
    assert judged([good(), good(gopher_words=3.0), good(gopher_words=3.0, language="de")]) == [
        *(KEPT, "gopher.words", "language.code")
    ]
    assert judged([good(licence="it's \\ free"), good(licence=None), good(licence="gpl")]) == [
        *(KEPT, KEPT, "licence")
    ]
    last = CleanConfig(chain=("gopher", "language"))
    assert judged([good(gopher_words=3.0, language="de")], last) == ["gopher.words"]
    assert judged([good(gopher_words=3.0)], CleanConfig(chain=())) == [KEPT]


def test_a_signal_that_is_missing_breaks_nothing():
    missing = dict.fromkeys(SCHEMA.names)
    assert judged([missing]) == [KEPT]


def test_a_bound_allows_what_equals_it():
    for check in checks(EVERYTHING):
        if check.operator == "not in":
            continue
        step = -1e-9 if check.operator == "<" else 1e-9
        at, beyond = good(**{check.column: check.threshold}), good(**{check.column: check.threshold + step})
        alone = EVERYTHING.model_copy(update={"chain": (check.rule.partition(".")[0],)})
        assert judged([at], alone) == [KEPT] and judged([beyond], alone) == [check.rule], check


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "language": st.sampled_from(["en", "de", "it's", None]),
            "licence": st.sampled_from(["mit", "gpl", "it's \\ free", None]),
        },
        optional={
            name: st.one_of(
                st.none(), st.floats(0, 1), st.sampled_from([0.1, 0.2, 0.3, 0.65, 3.0, 10.0, 50.0, 1e6])
            )
            for name in NAMES
        },
    ).map(lambda changes: good(**changes)),
    min_size=20,
    max_size=40,
)


@given(rows=ROWS)
@settings(max_examples=6, deadline=None)
def test_sql_judges_as_arrays_do(spark_session, rows):
    frame = spark_session.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)).selectExpr(
        "*", f"{verdict(EVERYTHING)} AS verdict"
    )
    found = [row["verdict"] for row in frame.collect()]
    assert [KEPT if one is None else one["rule"] for one in found] == judged(rows)
    by_rule = {check.rule: check for check in checks(EVERYTHING)}
    for row, one in zip(rows, found, strict=True):
        if one is None or one["rule"].startswith("lic"):
            continue
        shown = row[by_rule[one["rule"]].value or by_rule[one["rule"]].column]
        assert one["value"] == shown
        assert one["threshold"] in {c.threshold for c in checks(EVERYTHING) if c.rule == one["rule"]}


@pytest.fixture(scope="module")
def spark_session(spark_engine):
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession(f"{spark_engine.url}/", userId="test")
    yield session
    session.client.close()
    session.client.close = lambda: None


@pytest.mark.parametrize(
    "change, message",
    [
        ("clean.gopher.min_wrds=80", "clean.gopher.min_wrds.*\n.*min_words"),
        ("clean.gopher.min_words=-1", r"clean.gopher.min_words.*found -1"),
        ("measure.profile=paper", "sets no field of clean"),
        ("clean.gopher.min_words", "sets no field of clean"),
        ("clean.gofer.min_words=1", "sets no field of clean"),
        ("clean.gopher.min_words.x=1", "sets no field of clean"),
        ("clean.languages=[english]", "unknown language"),
    ],
)
def test_a_change_of_no_field_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        changed(CleanConfig(), [change])


def test_changes_add_up():
    found = changed(CleanConfig(), ["clean.gopher.min_words=80", "clean.languages=[]"])
    assert (found.gopher.min_words, found.languages) == (80, ())


def test_what_if_is_what_a_run_then_does(finished):
    """And the run measures nothing again."""
    manifests = {stage: outcome.digest for stage, outcome in finished.outcomes.items()}
    said = what_if(finished.store, manifests, ["clean.gopher.min_words=150", "clean.languages=[en, de]"])
    old = finished.outcomes["clean"].manifest.spec.config
    new = CleanConfig.model_validate(old).model_copy(
        update={"gopher": GopherConfig(min_words=150), "languages": ("en", "de")}
    )
    before = {row["id"]: row["rule"] for row in finished.rows("clean")}
    kept = dict(finished.outcomes)
    finished.run("ingest", "measure", "clean", configs={"clean": new})
    assert finished.outcomes["measure"].hit and not finished.outcomes["clean"].hit
    after = {row["id"]: row["rule"] for row in finished.rows("clean")}
    finished.outcomes.update(kept)
    flips = Counter(
        (before[name] or KEPT, after[name] or KEPT) for name in before if before[name] != after[name]
    )
    assert {(flip.before, flip.after): flip.documents for flip in said.flips} == flips and flips
    assert said.kept_before == sum(rule is None for rule in before.values())
    assert said.kept_after == sum(rule is None for rule in after.values())


def test_an_empty_document_is_dropped_as_such():
    config = CleanConfig(chain=("document",), document=DocumentConfig(min_characters=5))
    assert judged([good(document_characters=4.0), good(document_characters=5.0)], config) == [
        *("document.characters", KEPT)
    ]
