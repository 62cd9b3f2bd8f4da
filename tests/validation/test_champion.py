"""A moved champion changes the decision alone: nothing is trained, exported or measured again."""

from __future__ import annotations

from bloomery.airflow import work
from bloomery.config.run import parse
from tests.validation.models import make_candidate

CONFIG = 'name: tiny\ncorpus: {snapshot: {sources: [{name: a, uri: "/data"}]}}\n'


def item(store, name: str, bits_per_byte: float) -> dict[str, str]:
    candidate = make_candidate(store, name, bits_per_byte)
    known = {"config": work.keep_config(parse(CONFIG)), "name": "tiny", "train": name.ljust(64, "0")}
    return known | {"export": candidate.export, "evaluate": candidate.evaluate}


def release(item: dict[str, str]) -> dict[str, str]:
    decided = work.decide(item, lambda _: None)
    assert not isinstance(decided, work.Kept)
    return work.release(work.sign(decided, lambda _: None), "a person", lambda _: None)


def test_a_moved_champion_runs_only_the_decision_again(store):
    middling, better = item(store, "middling", 1.5), item(store, "better", 1.2)
    assert not isinstance(work.decide(middling, lambda _: None), work.Kept)  # there is no champion yet
    assert release(better)["version"] == "1"
    actions = {key: store.get(key) for key in store.keys("actions/")}
    kept = work.decide(middling, lambda _: None)  # the champion has moved
    assert isinstance(kept, work.Kept)
    assert "not better" in kept.reasons
    assert {key: store.get(key) for key in store.keys("actions/")} == actions
    again = work.decide(better, lambda _: None)
    assert isinstance(again, work.Kept)
    assert "released already as version 1" in again.reasons
