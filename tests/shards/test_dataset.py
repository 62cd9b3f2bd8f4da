"""A dataset: what was written is read, and whatever is damaged is named before it is used."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from awscrt.checksums import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.artifacts.canonical import sha256
from bloomery.shards.dataset import MANIFEST, Dataset, check_dataset
from bloomery.shards.format import DamagedError, ShardError, index_bytes
from bloomery.shards.keys import keys, parse_ids
from bloomery.shards.side import BLOCK, DOMAINS, ORIGIN, REST, Domain, side_bytes
from bloomery.shards.stream import TokenStream
from bloomery.shards.table import ShardInfo, names_bytes
from bloomery.shards.write import Document, ShardWriter, dataset_files, host, write_dataset
from tests.shards.data import POLICY, dataset, documents, name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    return folder, dataset(folder)


def test_every_document_is_read_as_it_was_written(whole):
    folder, digest = whole
    opened = check_dataset(folder, digest)
    expected = {"web": documents(200), "books": documents(40, seed=1)}
    for stream in opened.streams("train"):
        left = {document.id: document for document in expected[stream.source]}
        names, order, before = opened.names(stream.source), [], 0
        assert len(stream.table) > 1
        for number in range(len(stream.table)):
            shard = stream.shard(number)
            assert int(stream.table.tokens_before[number]) == before
            before += shard.info.tokens
            for position in range(len(shard)):
                document = left.pop(shard.side.ids[position].tobytes().hex())
                order.append(document.id)
                assert shard.document(position).tolist() == np.asarray(document.tokens).tolist()
                origin = shard.side.origins[position]
                assert names[int(origin["file"])] == document.path
                assert (int(origin["offset"]), int(origin["length"])) == (document.offset, document.length)
                assert int(origin["member"]) == (-1 if document.member is None else document.member)
        assert not left and before == stream.tokens
        found = keys(parse_ids(order), POLICY.seed)
        assert (found[1:] > found[:-1]).all()
        assert stream.table.first_key.tolist() == [int(found[int(n)]) for n in stream.table.documents_before]


def test_the_side_file_says_what_packing_reads(whole):
    folder, _ = whole
    for stream in Dataset.open(folder).streams():
        for number in range(len(stream.table)):
            shard = stream.shard(number)
            side, lengths = shard.side, np.diff(shard.side.starts)
            assert side.by_length.tolist() == sorted(range(len(lengths)), key=lambda n: (lengths[n], n))
            assert dict(zip(side.lengths.tolist(), side.counts.tolist(), strict=True)) == {
                n: (lengths == n).sum() for n in set(lengths.tolist())
            }
            data = shard.path.read_bytes()
            assert side.blocks.tolist() == [
                crc32c(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)
            ]
            domains = side.domains()
            assert sum(d.documents for d in domains) == len(shard)
            assert sum(d.tokens for d in domains) == shard.info.tokens
            assert domains == sorted(domains, key=lambda d: (-d.tokens, d.name))


def test_rare_domains_are_summed_up(tmp_path):
    made = [Document(name(n), [5] * (1 + n), url=f"http://h{n:03d}.net/") for n in range(DOMAINS + 10)]
    write_dataset(tmp_path, {"train": {"web": made}}, POLICY)
    domains = Dataset.open(tmp_path).stream("train", "web").shard(0).side.domains()
    assert len(domains) == DOMAINS + 1
    assert domains[0] == Domain(f"h{DOMAINS + 9:03d}.net", 1, DOMAINS + 10)
    assert domains[-1] == Domain(REST, 10, 55)


@pytest.mark.parametrize(
    "url, expected",
    [
        ("https://A.Example.org:80/x", "a.example.org"),
        ("http://u:p@b.org?q", "b.org"),
        ("http://[2001:DB8::1]:8/", "[2001:db8::1]"),
        ("mailto:x@y.org", ""),
        ("//a.org", ""),
        ("http:///x", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_hosts(url, expected):
    assert host(url) == expected


def test_equal_documents_make_equal_datasets_in_any_order(whole, tmp_path):
    folder, digest = whole
    splits = {
        "held_out": {"web": documents(20, seed=2)[::-1]},
        "train": {"books": documents(40, seed=1)[::-1], "web": sorted(documents(200))},
    }
    assert write_dataset(tmp_path, splits, POLICY, target_bytes=2048) == digest
    files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert files == {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_a_source_that_is_no_name_of_a_folder_is_refused(tmp_path):
    for bad in ("", "..", "a/b", "A", ".x", "a\n"):
        with pytest.raises(ShardError, match="no name of a source"):
            write_dataset(tmp_path, {"train": {bad: documents(1)}}, POLICY)
    assert not list(tmp_path.rglob("*.bin"))


def read_all(folder, digest):
    """Every token of the dataset, through a reader's checks."""
    for stream in Dataset.open(folder, digest).streams():
        for number in range(len(stream.table)):
            shard = stream.shard(number)
            shard.read(0, shard.info.tokens)


def test_every_flip_truncation_swap_and_loss_is_named(whole, tmp_path):
    """Of every file, at any place: nothing of it is read as if it were whole."""
    folder, digest = whole
    random = np.random.default_rng(0)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    read_all(copy, digest)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    assert len(files) > 30
    for number in range(300):
        victim = files[int(random.integers(len(files)))]
        data = victim.read_bytes()
        match number % 4:
            case 0:
                at = int(random.integers(len(data)))
                flipped = bytes([data[at] ^ (1 << int(random.integers(8)))])
                victim.write_bytes(data[:at] + flipped + data[at + 1 :])
            case 1:
                victim.write_bytes(data[: int(random.integers(len(data)))])
            case 2:
                other = files[int(random.integers(len(files)))].read_bytes()
                if other == data:
                    continue
                victim.write_bytes(other)
            case 3:
                victim.unlink()
        for check in (read_all, check_dataset):
            with pytest.raises(DamagedError) as error:
                check(copy, digest)
            assert error.value.path == victim
        victim.write_bytes(data)
    read_all(copy, digest)


def test_an_empty_shard_is_refused(tmp_path):
    nothing, ids, dtype = np.zeros(0, np.int64), np.zeros((0, 16), np.uint8), np.dtype(POLICY.dtype)
    index = index_bytes(nothing, dtype)
    side = side_bytes(np.zeros(0, np.uint32), ids, nothing, np.zeros(0, ORIGIN), {})
    digests = [sha256(data) for data in (b"", index, side)]
    info = ShardInfo("ab" * 16, 0, 0, 0, 0, len(side), *digests)
    folder = tmp_path / "train" / "web"
    folder.mkdir(parents=True)
    for file, data in zip(info.files(), (b"", index, side), strict=True):
        (folder / file).write_bytes(data)
    files = dataset_files(POLICY, "0" * 64, {("train", "web"): [info]}, {"web": names_bytes([""])})
    for file, data in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(data)
    with pytest.raises(DamagedError, match="no shard is empty"):
        Dataset.open(tmp_path).stream("train", "web").shard(0)
    with pytest.raises(ShardError, match="without a document"), ShardWriter(tmp_path, POLICY) as writer:
        writer.finish()


def test_an_unknown_stream_is_named(whole):
    with pytest.raises(ShardError, match="holds nothing of source 'news'\nRemedy: it has books, web"):
        Dataset.open(whole[0]).stream("train", "news")


def test_a_manifest_of_another_kind_is_refused(tmp_path):
    dataset(tmp_path)
    path = tmp_path / MANIFEST
    manifest = json.loads(path.read_bytes())
    for field, value in (("version", 2), ("more", 1), ("policy", manifest["policy"] | {"key": "md5"})):
        path.write_text(json.dumps(manifest | {field: value}))
        with pytest.raises(DamagedError, match=field):
            Dataset.open(tmp_path)


small = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=7), min_size=1, max_size=12)


@given(small, small, st.integers(1, 9), st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_sequences_run_over_documents_shards_and_sources(tmp_path_factory, first, second, length, target):
    folder = tmp_path_factory.mktemp("stream")
    sources = {
        source: [Document(name(f"{source}{n}"), tokens) for n, tokens in enumerate(held)]
        for source, held in (("a", first), ("b", second))
    }
    write_dataset(folder, {"train": sources}, POLICY, target_bytes=target)
    every = [token for held in sources.values() for token in in_order(held)]
    stream = TokenStream.open(folder, "train")
    count = stream.sequences(length)
    assert len(stream) == len(every) and count == (len(every) - 1) // length
    found = stream.gather(np.arange(count), length)
    assert found.tokens.tolist() == [every[i * length : (i + 1) * length + 1] for i in range(count)]
    places = [
        place for held in sources.values() for d in in_order_documents(held) for place in range(len(d.tokens))
    ]
    for number, row in enumerate(found.positions.tolist()):
        assert row == [min(place, i) for i, place in enumerate(places[number * length :][:length])]


def in_order_documents(held):
    return sorted(held, key=lambda d: (keys(parse_ids([d.id]), POLICY.seed)[0], d.id))


def in_order(held):
    return [token for document in in_order_documents(held) for token in document.tokens]


def test_ids_outside_the_vocabulary_are_refused_by_readers_too(tmp_path):
    write_dataset(tmp_path, {"train": {"a": [Document(name(0), [1, 2, 3, 700, 5])]}}, POLICY)
    path = tmp_path / MANIFEST
    manifest = json.loads(path.read_bytes())
    manifest["policy"]["vocab_size"] = 700
    path.write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match=r"sequence 1: ids 3 \.\. 700, vocabulary 700"):
        TokenStream.open(tmp_path, "train").gather(np.array([0, 1]), 2)
