"""Repeats across documents: cut by place, all but one, the same for any order; an emptied document is
told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.config.corpus import DedupConfig, RepeatsConfig
from spark_jobs.minhash import words_of
from spark_jobs.repeats import cut, units_of
from tests.spark_jobs.corpus import prose

BANNER = (
    "Subscribe to our newsletter and never miss a story again, dear reader, for every week we send you the "
    "best of what our editors have found, read and loved, and nothing else."
)
WAY = ("ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate", "ledger")


def test_units():
    text = f"first line that is long enough\nsecond line that is long enough\n\n{BANNER}\n \nshort"
    spans = {
        rule: [text[unit.start : unit.end] for unit in units_of(text, RepeatsConfig(**{rule: wanted}))]
        for rule, wanted in (("lines", True), ("paragraphs", True), ("words", 20))
    }
    assert spans["lines"] == [text.split("\n")[0], text.split("\n")[1], BANNER]
    assert spans["paragraphs"] == [text.split("\n\n")[0], f"{BANNER}\n \nshort"]
    assert len(spans["words"]) == len(words_of(text)) - 20 + 1 and spans["words"][0].startswith("first line")
    assert list(units_of(text, RepeatsConfig())) == []


@given(st.text(), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5))
def test_what_is_cut_is_what_no_place_covers(text, places):
    places = [(min(a, b), max(a, b)) for a, b in places]
    covered = {position for start, end in places for position in range(start, end)}
    assert cut(text, places) == "".join(c for position, c in enumerate(text) if position not in covered)


@pytest.mark.parametrize(
    "config", [RepeatsConfig(lines=True), RepeatsConfig(paragraphs=True), RepeatsConfig(words=25)]
)
def test_all_but_one_are_cut(pipeline, config):
    texts = [f"{prose(n)}\n\n{BANNER}\n\n{prose(n + 50)}" for n in range(8)]
    texts += [prose(40), f"{prose(40)}\n\n{prose(90)}"]
    (pipeline.corpus / "a.jsonl").write_text(
        "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts))
    )
    pipeline.run(*WAY, configs={"dedup": DedupConfig(repeats=config, threshold=0.9)})
    first = {name: pipeline.outcomes[name].digest for name in WAY}
    rows = {row["id"]: row for row in pipeline.rows("ledger", "ledger")}
    kept = [row["text"] for row in pipeline.rows("decontaminate") if row["status"] == "kept"]
    assert sum(text.count(BANNER) for text in kept) == 1
    assert sum(text.count(prose(40)) for text in kept) == 1
    if not config.words:  # the test's prose repeats itself in runs of words
        for n in range(8):
            assert sum(prose(n) in text and prose(n + 50) in text for text in kept) == 1
    emptied = [row for row in rows.values() if row["rule"] == "dedup.repeats"]
    assert all((row["status"], row["stage"]) == ("duplicate", "dedup") for row in emptied)
    assert len(kept) + len(emptied) == len(texts)
    from bloomery.artifacts.run import invalidate

    for name in ("dedup", "decontaminate"):
        invalidate(pipeline.store, pipeline.outcomes[name].manifest.spec.key, "test")
    pipeline.run(*WAY, partitions=5, configs={"dedup": DedupConfig(repeats=config, threshold=0.9)})
    assert {name: pipeline.outcomes[name].digest for name in WAY} == first
