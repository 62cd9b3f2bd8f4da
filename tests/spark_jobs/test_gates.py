"""The gates on real tables and real shards: what they measure is what is there."""

from __future__ import annotations

import json

import pytest

from bloomery.artifacts.run import artifact
from bloomery.config.gates import CorpusGateConfig, Limits, ShardGateConfig
from bloomery.shards.dataset import Dataset
from tests.spark_jobs.conftest import Pipeline
from validation.gates.corpus import NO_BASELINE

ANY = Limits(block=1)
LENIENT = CorpusGateConfig(min_documents=1, min_held_out=0, quarantined=ANY, dropped=ANY)


def judged(finished: Pipeline, gate: str, policy: CorpusGateConfig | ShardGateConfig) -> dict:
    outcome = finished.run(gate, configs={gate: policy})
    del finished.outcomes[gate]  # the pipeline is shared
    report = artifact(finished.store, outcome.digest, "report").read()
    assert report.startswith(b"<!doctype html>")
    return json.loads(artifact(finished.store, outcome.digest, "verdict").read())


def test_the_corpus_gate_counts_what_the_table_holds(finished):
    verdict = judged(finished, "corpus_gate", LENIENT)
    kept = [row for row in finished.rows("decontaminate") if row["status"] == "kept"]
    records = finished.rows("ingest")
    quarantined = sum(row["status"] == "quarantined" for row in records)
    assert verdict["passed"], verdict["failed"]
    assert verdict["notes"] == [NO_BASELINE]
    assert verdict["observed"] == {
        "documents": len(kept),
        "held_out": sum(row["split"] == "held_out" for row in kept),
        "quarantined": quarantined / len(records),
        "dropped": pytest.approx(1 - (len(kept) + quarantined) / len(records)),
        **dict.fromkeys(("unaccounted", "empty", "repeated_ids", "contaminated", "repeated", "short"), 0),
        **dict.fromkeys(("no_language", "mojibake", "pii"), 0),
    }


def test_a_stricter_corpus_policy_fails_and_says_by_how_much(finished):
    verdict = judged(finished, "corpus_gate", CorpusGateConfig(min_documents=10_000))
    assert not verdict["passed"]
    assert any(line.startswith("documents is") and ">= 10000" in line for line in verdict["failed"])


def test_drift_is_measured_against_the_baseline(finished):
    finished.outcomes["baseline"] = finished.outcomes["profile"]
    try:
        verdict = judged(finished, "corpus_gate", LENIENT)
    finally:
        del finished.outcomes["baseline"]
    drift = {name: value for name, value in verdict["observed"].items() if name.startswith("drift")}
    assert len(drift) == 8
    assert set(drift.values()) == {0}
    assert verdict["notes"] == []


def test_the_shard_gate_opens_every_shard_and_sees_a_flipped_bit(finished):
    policy = ShardGateConfig(min_tokens=1, min_bytes_per_token=0.1)
    verdict = judged(finished, "shard_gate", policy)
    assert verdict["passed"], verdict["failed"]
    shards = artifact(finished.store, finished.outcomes["shard"].digest, "shards")
    assert verdict["observed"]["damaged"] == 0
    stream = Dataset.open(shards.local(finished.corpus / "cache")).stream("train", "corpus")
    path = stream.folder / f"{stream.table[0].name}.bin"
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        verdict = judged(finished, "shard_gate", policy.model_copy(update={"min_tokens": 2}))
    finally:
        path.write_bytes(whole)
    assert verdict["failed"] == [
        "damaged is 1, allowed <= 0 (files of a shard whose sha256 is not its table's)"
    ]
