"""What a stage does when it cannot do its work: it names the thing and the remedy, and commits nothing."""

from __future__ import annotations

import json

import pytest

from bloomery.artifacts.canonical import sha256
from bloomery.config.corpus import TokenizerConfig
from bloomery.config.sources import IngestConfig
from spark_jobs.engine import JobError
from spark_jobs.ingest import _check_cover
from spark_jobs.readers.listing import File
from spark_jobs.tables import BalanceError, check_balance
from spark_jobs.tokenizer import SEPARATOR, TokenizerError, load, train
from tests.spark_jobs.corpus import prose


def test_a_file_that_vanishes_after_the_snapshot_fails_ingest_by_name(pipeline, monkeypatch):
    (pipeline.corpus / "a.txt").write_text(prose(1))
    pipeline.run()
    kept = pipeline.outcomes["snapshot"]
    (pipeline.corpus / "a.txt").unlink()
    monkeypatch.setattr("tests.spark_jobs.conftest.take", lambda *args: kept)
    with pytest.raises(JobError, match=r"a\.txt cannot be read: No such file"):
        pipeline.run("ingest")
    assert list(pipeline.store.keys("actions/")) == [f"actions/{kept.manifest.spec.key}"]


def test_a_corpus_without_a_survivor_is_told_by_the_tokenizer(pipeline):
    (pipeline.corpus / "a.jsonl").write_text('{"text": "Far too short."}\n')
    with pytest.raises(TokenizerError, match="no training document survived"):
        pipeline.run("ingest", "clean", "signatures", "pairs", "dedup", "decontaminate", "tokenizer")
    assert pipeline.outcomes["dedup"].manifest.outputs["documents"].rows == 0


def test_a_pinned_tokenizer_is_used_as_it_is(finished, monkeypatch):
    monkeypatch.setattr(finished, "outcomes", dict(finished.outcomes))
    data = train([prose(1)], 300)
    pinned = {"tokenizer": TokenizerConfig(pinned=sha256(data))}
    with pytest.raises(TokenizerError, match="is not in the store"):
        finished.run("tokenizer", configs=pinned)
    finished.store.put_new(f"cas/{sha256(data)}", data)
    output = finished.run("tokenizer", configs=pinned).manifest.outputs["tokenizer"]
    assert output.digest == sha256(data) and output.facts["vocab_size"] == 300


def test_tokenizers_of_no_use_are_refused():
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        load(b"{}")
    other = json.loads(train([prose(1)], 300))
    other["added_tokens"] = []
    del other["model"]["vocab"][SEPARATOR]
    with pytest.raises(TokenizerError, match="has no token"):
        load(json.dumps(other).encode())


def test_a_separator_in_a_text_is_text():
    vocabulary = load(train([prose(1)], 300))
    found = vocabulary.encode(f"a{SEPARATOR}b", add_special_tokens=False).ids
    assert vocabulary.token_to_id(SEPARATOR) == 0 not in found
    assert vocabulary.decode(found, skip_special_tokens=False) == f"a{SEPARATOR}b"


def test_lost_rows_and_uncovered_bytes_fail():
    check_balance("clean", 3, 3)
    with pytest.raises(BalanceError, match="clean read 3 rows and wrote 2"):
        check_balance("clean", 3, 2)
    file = File("s", "a.txt", "/x/a.txt", 10, "1", "text")
    _check_cover([file], {("s", "a.txt"): 10})
    for covered in ({}, {("s", "a.txt"): 9}, {("s", "a.txt"): 11}):
        with pytest.raises(BalanceError, match=r"/x/a\.txt"):
            _check_cover([file], covered)
    _check_cover([file._replace(path="a.txt.gz")], {("s", "a.txt.gz"): 99})
    _check_cover([file._replace(size=0)], {})
    with pytest.raises(BalanceError):
        _check_cover([file._replace(path="a.txt.gz")], {})


def test_limits_enter_the_key():
    with pytest.raises(ValueError, match="greater than 0"):
        IngestConfig(max_record_bytes=0)
