"""The profile on real tables: what it says is what they hold, by Spark and by the same arithmetic without."""

from __future__ import annotations

import re
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import LocalStore
from spark_jobs import statistics
from spark_jobs.cleaning.pii import KINDS, redact
from spark_jobs.cleaning.signals import column
from spark_jobs.contamination import Index
from spark_jobs.profiling import NUMERIC, STANDARD, CorpusProfile
from spark_jobs.statistics import (
    LOOKS,
    OCTAVE,
    SAMPLES,
    ZERO,
    Statistics,
    bins,
    lower_edge,
    of_texts,
    words_of,
)
from tests.spark_jobs.conftest import ORDER, Pipeline


def profile_of(pipeline: Pipeline) -> CorpusProfile:
    return CorpusProfile.from_bytes(
        artifact(pipeline.store, pipeline.outcomes["profile"].digest, "profile").read()
    )


def test_the_profile_says_what_the_tables_hold(finished):
    found, ledger = profile_of(finished), finished.rows("ledger", "ledger")
    measured = {row["id"]: row for row in finished.rows("measure")}
    survivors = [row for row in finished.rows("decontaminate") if row["status"] == "kept"]
    assert found.documents == len(survivors)
    assert found.size == sum(len(row["text"].encode()) for row in survivors)
    assert found.records == len(ledger)
    assert (found.empty, found.repeated_ids, found.repeated_contents, found.contaminated) == (0, 0, 0, 0)
    assert found.languages == {"en": len(survivors)}
    assert found.splits == Counter(row["split"] for row in survivors)
    assert found.sources["corpus"].documents == len(survivors)
    fates = Counter((row["stage"] or "", row["status"], row["rule"] or "") for row in ledger)
    assert {(f.stage, f.status, f.rule): f.records for f in found.fates} == fates
    assert sum(fate.bytes for fate in found.fates) == sum(row["length"] for row in ledger)
    assert found.nulls["url"] == sum(measured[row["id"]]["url"] is None for row in survivors)
    words = Counter(
        bins(pa.array([measured[row["id"]][column("gopher.words")]]).to_numpy()).item() for row in survivors
    )
    assert dict(found.histograms[column("gopher.words")]) == words
    assert set(found.histograms) <= {*NUMERIC, "bytes", "characters", "words", "characters_per_word"}


def test_samples_are_the_least_ids_of_each_rule_with_the_beginning_of_their_texts(finished):
    found, ledger = profile_of(finished), finished.rows("ledger", "ledger")
    measured = {row["id"]: row["text"] for row in finished.rows("measure")}
    for rule in {row["rule"] or row["status"] for row in ledger}:
        least = sorted(row["id"] for row in ledger if (row["rule"] or row["status"]) == rule)[:SAMPLES]
        samples = [sample for sample in found.samples if sample.rule == rule]
        assert [sample.id for sample in samples] == least
        assert [sample.text for sample in samples] == [
            None if measured[name] is None else measured[name][:400] for name in least
        ]


def test_other_partitions_and_batches_give_the_same_bytes(finished, tmp_path, monkeypatch):
    again = Pipeline(LocalStore(tmp_path / "store"), finished.corpus, finished.execution)
    again.run(*ORDER[: ORDER.index("profile") + 1], partitions=5)
    assert profile_of(again).to_bytes() == profile_of(finished).to_bytes()


@settings(deadline=None)
@given(st.lists(st.floats(1e-30, 1e30), min_size=1), st.integers(-60, 60))
def test_a_value_lies_in_its_bin_and_powers_of_two_begin_one(values, power):
    for value, bin_ in zip(values, bins(pa.array(values).to_numpy()).tolist(), strict=True):
        assert lower_edge(bin_) <= value * (1 + 1e-12)
        assert value < lower_edge(bin_ + 1) * (1 + 1e-12)
    assert bins(pa.array([2.0**power, 0.0, -1.0]).to_numpy()).tolist() == [power * OCTAVE, ZERO, ZERO]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["kept", "a.rule", "b.rule"]), max_size=60), st.integers(0, 60))
def test_statistics_of_parts_add_up_to_those_of_the_whole(rules, cut):
    ids = [f"{n * 7919 % 1000:04d}" for n in range(len(rules))]

    def of(part: slice) -> Statistics:
        rows = {
            "id": pa.array(ids[part], pa.string()),
            "status": pa.array(rules[part], pa.string()),
            "rule": pa.array([r if "." in r else None for r in rules[part]], pa.string()),
            "value": pa.array([float(len(r)) for r in rules[part]], pa.float64()),
        }
        rows |= {name: pa.array(rules[part], pa.string()) for name in ("source", "language", "split")}
        return statistics.of_records(pa.table(rows), ["value"], ["rule"])

    whole, halves = of(slice(None)), of(slice(cut)) + of(slice(cut, None))
    assert halves.to_json() == whole.to_json()
    assert Statistics.from_json(whole.to_json()) == whole


HELD = {
    "email": "write to ada@example.org today",
    "ip": "from 8.8.8.8 and 2001:4860:4860::8888",
    "phone": "call +44 20 7946 0958 or (212) 555-0142 or 212-555-0142",
    "credit_card": "pay with 4111 1111 1111 1111 or 378282246310005",
    "iban": "to DE89 3704 0044 0532 0130 00",
    "api_key": "key AKIAIOSFODNN7EXAMPLE and ghp_16C7e42F292c6912E7710c838347Ae178B4a",
}


def test_personal_data_of_every_kind_is_found():
    rows = pa.table({"id": list(HELD), "source": ["s"] * len(HELD), "text": list(HELD.values())})
    found = of_texts(rows, words_of(rows["text"]), Index([], STANDARD))
    assert {kind for kind, count in found.of("pii").items() if count} == set(KINDS)
    assert found.counts["texts", "pii"] == len(HELD)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(HELD)), st.text(max_size=20), st.text(max_size=20), st.randoms())
def test_no_text_with_personal_data_is_passed_over(kind, before, after, random):
    text = list(HELD[kind])
    for _ in range(random.randrange(3)):
        text[random.randrange(len(text))] = random.choice("0123456789 .:-@AZaz")
    text = before + "".join(text) + after
    for name in KINDS:
        if redact(text, [name]).counts[name]:
            assert re.search(LOOKS[name], text), name


@pytest.mark.parametrize("broken", ["cafÃ© au lait", "itâ€™s", "gone \ufffd"])
def test_mojibake_is_counted(broken):
    rows = pa.table({"id": ["1", "2"], "source": ["s", "s"], "text": [broken, "café, it’s – “fine”"]})
    assert of_texts(rows, words_of(rows["text"]), Index([], STANDARD)).counts["texts", "mojibake"] == 1
