"""A split as one stream of tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.shards.format import ShardError, write_shard
from bloomery.shards.stream import TokenStream, check_shards


def write(folder, shards, vocab_size=1000):
    """Writes shards of documents; returns the whole stream."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    infos = [
        write_shard(folder / "train", [np.array(document) for document in documents], np.dtype("<u2"))
        for documents in shards
    ]
    manifest = {"vocab_size": vocab_size, "splits": {"train": {"shards": [vars(info) for info in infos]}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return [token for documents in shards for document in documents for token in document]


documents = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=7), min_size=1, max_size=4)


@given(st.lists(documents, min_size=1, max_size=5), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_sequences_run_over_documents_and_shards(tmp_path_factory, shards, length):
    folder = tmp_path_factory.mktemp("shards")
    whole = write(folder, shards)
    stream = TokenStream.open(folder, "train")
    count = stream.sequences(length)
    assert len(stream) == len(whole)
    assert count == (len(whole) - 1) // length
    found = stream.gather(np.arange(count), length).tolist()
    assert found == [whole[i * length : (i + 1) * length + 1] for i in range(count)]


def test_an_id_outside_the_vocabulary_is_refused(tmp_path):
    write(tmp_path, [[[1, 2, 3, 700, 5]]], vocab_size=700)
    with pytest.raises(ShardError, match=r"sequence 1: ids 3 \.\. 700, vocabulary 700"):
        TokenStream.open(tmp_path, "train").gather(np.array([0, 1]), 2)


def test_a_damaged_shard_is_named(tmp_path):
    write(tmp_path, [[[1, 2, 3]], [[4, 5, 6]]])
    check_shards(tmp_path)
    victim = sorted((tmp_path / "train").glob("*.bin"))[0]
    data = bytearray(victim.read_bytes())
    data[0] ^= 1
    victim.write_bytes(data)
    with pytest.raises(ShardError, match=victim.name):
        check_shards(tmp_path)


def test_a_missing_manifest_is_named(tmp_path):
    with pytest.raises(ShardError, match=r"manifest\.json"):
        TokenStream.open(tmp_path, "train")
