"""A model of data that a gate warned of is released only with a waiver on record."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bloomery import cli
from bloomery.airflow import work
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.config.run import parse
from bloomery.errors import BloomeryError
from tests.training.world import put
from tests.validation.models import make_candidate

CONFIG = 'name: tiny\ncorpus: {snapshot: {sources: [{name: a, uri: "/data"}]}}\n'
SHARDS = "5" * 64
WARNING = "drift_bytes is 0.12, allowed <= 0.1 (relative change of the bytes of text)"


def verdict(store, gate: str, warnings: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> str:
    facts = {"passed": not failed, "failed": list(failed), "warnings": list(warnings), "notes": []}
    place = f"data/{gate}/{len(list(store.keys('data/')))}"
    store.put_new(place, b"{}")
    made = Artifact(Output(digest="0" * 64, facts=facts), place, store)
    return put(store, gate, {"of": place}, {"verdict": made})


def publish(store, **verdicts: str) -> dict[str, str]:
    item = dict.fromkeys(work.DATA_STAGES, "0" * 64) | verdicts
    item |= {"name": "tiny", "until": "release", "config": work.keep_config(parse(CONFIG))}
    store.put_new("data/shard/s", b"x")
    made = Artifact(Output(digest=SHARDS), "data/shard/s", store)
    return work.publish(item | {"shard": put(store, "shard", {}, {"shards": made})}, lambda _: None)


def candidate(store) -> dict[str, str]:
    made = make_candidate(store, "one", 1.5, SHARDS)
    known = {"config": work.keep_config(parse(CONFIG)), "name": "tiny", "train": "1" * 64}
    return known | {"export": made.export, "evaluate": made.evaluate}


def waive(store, monkeypatch, digest: str) -> None:
    monkeypatch.setattr(cli, "_store", lambda: store)
    done = CliRunner().invoke(cli.app, ["waive", digest, "--reason", "a bigger crawl, as planned"])
    assert done.exit_code == 0, done.output


def test_a_warning_keeps_a_candidate_out_until_it_is_waived(store, monkeypatch):
    warned = verdict(store, "corpus_gate", (WARNING,))
    item = candidate(store)
    publish(store, corpus_gate=warned, shard_gate=verdict(store, "shard_gate"))
    kept = work.decide(item, lambda _: None)
    assert isinstance(kept, work.Kept)
    for said in ("gate corpus_gate", WARNING, f"bloomery waive {warned} --reason"):
        assert said in kept.reasons
    waive(store, monkeypatch, warned)
    assert not isinstance(work.decide(item, lambda _: None), work.Kept)


def test_each_warned_gate_needs_its_own_waiver(store, monkeypatch):
    gates = {gate: verdict(store, gate, (WARNING,)) for gate in ("corpus_gate", "shard_gate")}
    item = candidate(store)
    publish(store, **gates)
    waive(store, monkeypatch, gates["corpus_gate"])
    kept = work.decide(item, lambda _: None)
    assert isinstance(kept, work.Kept)
    assert "gate shard_gate" in kept.reasons
    assert "gate corpus_gate" not in kept.reasons


def test_the_warning_is_looked_for_at_the_moment_of_promotion(store):
    item = candidate(store)
    signed = work.sign(work.decide(item, lambda _: None), lambda _: None)
    warned = verdict(store, "corpus_gate", (WARNING,))
    publish(store, corpus_gate=warned, shard_gate=verdict(store, "shard_gate"))
    assert "version" not in work.release(signed, "ada", lambda _: None)


def test_a_verdict_without_warnings_asks_for_none(store):
    item = candidate(store)
    publish(store, **{gate: verdict(store, gate) for gate in ("corpus_gate", "shard_gate")})
    assert not isinstance(work.decide(item, lambda _: None), work.Kept)


def test_a_failed_verdict_ends_the_task_and_a_waived_one_gives_its_warnings(store, monkeypatch):
    failed = verdict(store, "corpus_gate", (WARNING,), ("documents is 1, allowed >= 100",))
    with pytest.raises(BloomeryError, match="documents is 1") as error:
        work.judge("corpus_gate", {"corpus_gate": failed})
    assert f"bloomery waive {failed}" in str(error.value)
    assert not error.value.retry
    waive(store, monkeypatch, failed)
    assert work.judge("corpus_gate", {"corpus_gate": failed}) == [WARNING]
