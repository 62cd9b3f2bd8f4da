"""Exports, read by what their formats say; the peers themselves read them in test_peers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import LocalStore
from bloomery.shards.dataset import Dataset, Policy
from bloomery.shards.export import export
from bloomery.shards.format import DamagedError, ShardError
from bloomery.shards.write import Document, write_dataset
from tests.shards.data import dataset, name


@pytest.fixture
def shards(tmp_path):
    store = LocalStore(tmp_path / "store")
    return Artifact(Output(digest=dataset(store.root / "data/shards")), "data/shards", store)


def held(shards):
    """(split, source) -> shards -> documents, as lists of ids."""
    opened = Dataset.open(shards.store.root / shards.place)
    return {
        (stream.split, stream.source): [
            [shard.document(n).tolist() for n in range(len(shard))]
            for shard in map(stream.shard, range(len(stream.table)))
        ]
        for stream in opened.streams()
    }


@pytest.mark.parametrize("dtype", [None, "int32", "uint32", "int64"])
@pytest.mark.parametrize("kind", ["npy", "ds"])
def test_plain_ids(shards, tmp_path, kind, dtype):
    said = []
    export(shards, kind, tmp_path / "out", dtype, said.append)
    for (split, source), made in held(shards).items():
        files = sorted((tmp_path / "out" / split / source).glob(f"*.{kind}"))
        assert len(files) == len(made)
        for file, documents in zip(files, made, strict=True):
            ids = np.fromfile(file, dtype or "uint16")
            assert ids.tolist() == [token for document in documents for token in document]
            if kind == "ds":
                ends = np.fromfile(f"{file}.index", "<u8").tolist()
                assert ends == np.cumsum([len(document) for document in documents]).tolist()
    assert said == sorted(said) and said[-1] == sum(
        len(d) for s in held(shards).values() for f in s for d in f
    )


@pytest.mark.parametrize("lengths", [[1, 255, 256, 65_535, 65_536, 3]])
def test_mds_samples_of_every_width_of_length(tmp_path, lengths):
    store = LocalStore(tmp_path)
    made = [Document(name(n), np.full(length, n)) for n, length in enumerate(lengths)]
    policy = Policy.of("ab" * 32, 100_000, 0, 1)
    write_dataset(tmp_path / "s", {"train": {"a": made}}, policy)
    export(Artifact(Output(digest=""), "s", store), "mds", tmp_path / "out")
    index = json.loads((tmp_path / "out/train/a/index.json").read_text())
    (shard,) = index["shards"]
    data = (tmp_path / "out/train/a" / shard["raw_data"]["basename"]).read_bytes()
    assert len(data) == shard["raw_data"]["bytes"] and shard["samples"] == len(lengths)
    found = []
    for number in range(shard["samples"]):
        start, stop = np.frombuffer(data, "<u4", 2, 4 + 4 * number)
        assert int(np.frombuffer(data, "<u4", 1, start)[0]) == stop - start - 4
        width = 1 << (data[start + 4] & 3)
        length = int.from_bytes(data[start + 5 : start + 5 + width], "little")
        values = np.frombuffer(data[start + 5 + width : stop], "<i4")
        assert data[start + 4] >> 2 == 1 and length == len(values)
        found.append((length, int(values[0])))
    assert sorted(found) == sorted((length, n) for n, length in enumerate(lengths))


def test_what_cannot_be_exported_is_told_and_leaves_nothing(shards, tmp_path):
    wide = LocalStore(tmp_path / "wide")
    policy = Policy.of("ab" * 32, 70_000, 0, 1)
    write_dataset(wide.root / "s", {"train": {"a": [Document(name(0), [69_999])]}}, policy)
    refused = [
        (
            Artifact(Output(digest=""), "s", wide),
            "npy",
            "uint16",
            "holds ids up to 65535, the vocabulary has 70000",
        ),
        (shards, "npy", "float32", "is no dtype of token ids"),
        (shards, "csv", None, "one of mds, ds, npy"),
    ]
    for made, kind, dtype, what in refused:
        with pytest.raises(ShardError, match=what):
            export(made, kind, tmp_path / "out", dtype)
        assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    with pytest.raises(ShardError, match="is not empty"):
        export(shards, "npy", tmp_path / "out")


@pytest.mark.parametrize("kind", ["npy", "ds", "mds"])
def test_a_flipped_bit_is_not_exported(shards, tmp_path, kind):
    victim = sorted((shards.store.root / shards.place).rglob("*.bin"))[0]
    data = victim.read_bytes()
    victim.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(DamagedError, match="CRC32C"):
        export(shards, kind, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
