"""The token format: what is written is read, damage is named, Megatron's layout is kept byte by byte."""

import struct

import numpy as np
import pytest

from bloomery.shards.format import ShardError, open_shard, token_dtype, write_shard

DOCUMENTS = [np.array([5, 6, 7]), np.array([1]), np.array([65_499, 0])]


@pytest.mark.parametrize(
    "vocab_size, dtype", [(4096, "<u2"), (65_499, "<u2"), (65_500, "<i4"), (128_256, "<i4")]
)
def test_round_trip(tmp_path, vocab_size, dtype):
    assert token_dtype(vocab_size) == np.dtype(dtype)
    info = write_shard(tmp_path, DOCUMENTS, token_dtype(vocab_size))
    shard = open_shard(tmp_path, info.name)
    assert (info.documents, info.tokens, len(shard)) == (3, 6, 3)
    assert [shard.document(i).tolist() for i in range(3)] == [d.tolist() for d in DOCUMENTS]
    assert shard.tokens.dtype == np.dtype(dtype)


def test_layout_is_megatrons(tmp_path):
    info = write_shard(tmp_path, DOCUMENTS, np.dtype("<u2"))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4)
    index += struct.pack("<3i", 3, 1, 2) + struct.pack("<3q", 0, 6, 8) + struct.pack("<4q", 0, 1, 2, 3)
    assert (tmp_path / f"{info.name}.idx").read_bytes() == index
    assert (tmp_path / f"{info.name}.bin").read_bytes() == struct.pack("<6H", 5, 6, 7, 1, 65_499, 0)


def test_equal_shards_are_one_file_and_nothing_else_is_left(tmp_path):
    first, second = (write_shard(tmp_path, DOCUMENTS, np.dtype("<u2")) for _ in range(2))
    other = write_shard(tmp_path, [np.concatenate(DOCUMENTS)], np.dtype("<u2"))
    assert first == second and first.bin_sha256 == other.bin_sha256 and first.name != other.name
    assert {p.stem for p in tmp_path.iterdir()} == {first.name, other.name}


@pytest.mark.parametrize("bad", [np.array([1 << 16]), np.array([-1]), np.array([], dtype=np.int64)])
def test_what_does_not_fit_is_refused(tmp_path, bad):
    with pytest.raises(ShardError, match="document 1"):
        write_shard(tmp_path, [DOCUMENTS[0], bad], np.dtype("<u2"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind, cut", [("bin", -1), ("bin", 100), ("idx", -1), ("idx", -30), ("idx", 8)])
def test_damage_is_named(tmp_path, kind, cut):
    info = write_shard(tmp_path, DOCUMENTS, np.dtype("<u2"))
    path = tmp_path / f"{info.name}.{kind}"
    data = path.read_bytes()
    path.write_bytes(data[:cut] if cut < 0 else data + bytes(cut))
    with pytest.raises(ShardError, match=path.name):
        open_shard(tmp_path, info.name)


def test_absent_and_foreign_files_are_named(tmp_path):
    with pytest.raises(ShardError, match=r"x\.idx"):
        open_shard(tmp_path, "x")
    (tmp_path / "x.idx").write_bytes(bytes(200))
    with pytest.raises(ShardError, match="header says"):
        open_shard(tmp_path, "x")
