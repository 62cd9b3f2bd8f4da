"""From a document's id to where it stands: every one, fast, and never in silence."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bloomery.shards.dataset import Dataset
from bloomery.shards.format import DamagedError
from bloomery.shards.lookup import UnknownDocumentError, locate
from bloomery.shards.write import Document, write_dataset
from tests.shards.data import POLICY, dataset, documents, name


def test_every_document_is_found_with_its_tokens_and_its_origin(tmp_path):
    dataset(tmp_path)
    opened = Dataset.open(tmp_path)
    held = {("train", "web"): (200, 0), ("train", "books"): (40, 1), ("held_out", "web"): (20, 2)}
    for (split, source), (count, seed) in held.items():
        stream, made = opened.stream(split, source), documents(count, seed)
        tokens = np.concatenate([stream.shard(n).tokens for n in range(len(stream.table))])
        for document, found in zip(made, locate(opened, [d.id for d in made]), strict=True):
            assert (found.id, found.split, found.source) == (document.id, split, source)
            assert tokens[found.start : found.stop].tolist() == np.asarray(document.tokens).tolist()
            assert found.origin == (document.path, document.member, document.offset, document.length)
            assert found.name == stream.table[found.shard].name
            here = stream.shard(found.shard).document(found.position)
            assert here.tolist() == tokens[found.start : found.stop].tolist()


def test_what_is_not_there_is_named(tmp_path):
    dataset(tmp_path)
    known, unknown = documents(1)[0].id, [name("x"), "f" * 32, "0" * 32]
    with pytest.raises(UnknownDocumentError) as error:
        locate(Dataset.open(tmp_path), [known, *unknown])
    assert all(missing in str(error.value) for missing in unknown) and known not in str(error.value)


def test_a_damaged_side_file_is_no_absence(tmp_path):
    dataset(tmp_path)
    opened, wanted = Dataset.open(tmp_path), documents(1)[0].id
    found = locate(opened, [wanted])[0]
    path = tmp_path / found.split / found.source / f"{found.name}.side"
    data = path.read_bytes()
    at = data.index(bytes.fromhex(wanted))
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(DamagedError) as error:
        locate(opened, [wanted])
    assert error.value.path == path


def test_a_document_of_many_is_found_in_50_ms(tmp_path):
    made = {f"s{n}": [Document(name(f"{n}/{i}"), [1, 2]) for i in range(20_000)] for n in range(8)}
    write_dataset(tmp_path, {"train": made}, POLICY)
    seconds = []
    for source in made.values():
        began = time.perf_counter()
        locate(Dataset.open(tmp_path), [source[7].id])
        seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[4] < 0.05, seconds
