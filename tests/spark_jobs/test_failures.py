"""What a stage does when it cannot do its work: it names the thing and the remedy, and commits nothing."""

from __future__ import annotations

import json

import pytest

from bloomery.artifacts.canonical import sha256
from bloomery.config.corpus import TokenizerConfig
from bloomery.config.sources import IngestConfig
from spark_jobs.ingest import _check_cover
from spark_jobs.readers.listing import File
from spark_jobs.tables import BalanceError, check_balance
from spark_jobs.tokenizer import SEPARATOR, TokenizerError, load, train
from tests.spark_jobs.corpus import prose


def test_a_corpus_without_a_survivor_is_told_by_the_tokenizer(pipeline):
    (pipeline.corpus / "a.jsonl").write_text('{"text": "Far too short."}\n')
    with pytest.raises(TokenizerError, match="no training document survived"):
        pipeline.run(
            "ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate", "tokenizer"
        )
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
    file, name = File("s", "a.txt", "/x/a.txt", 10, "1", "text"), ("s", "a.txt")
    _check_cover([file], {name: 10}, ())
    for covered in ({}, {name: 9}, {name: 11}):
        with pytest.raises(BalanceError, match=r"/x/a\.txt"):
            _check_cover([file], covered, ())
    _check_cover([file], {name: 0}, {name})
    _check_cover([file._replace(path="a.txt.gz")], {("s", "a.txt.gz"): 99}, ())
    for missing in (file._replace(size=0), file._replace(path="a.txt.gz"), file._replace(format="parquet")):
        with pytest.raises(BalanceError, match=r"/x/a\.txt"):
            _check_cover([missing], {}, ())


def test_limits_enter_the_key():
    with pytest.raises(ValueError, match="greater than 0"):
        IngestConfig(max_record_bytes=0)
