"""The files of a shard: Megatron's layout byte by byte, and what a writer refuses."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bloomery.shards.dataset import Policy
from bloomery.shards.format import ShardError, index_bytes, index_size, token_dtype
from bloomery.shards.keys import keys, parse_ids
from bloomery.shards.side import ORIGIN
from bloomery.shards.write import Documents, ShardWriter
from tests.shards.data import POLICY, documents, name


@pytest.mark.parametrize(
    "vocab_size, dtype", [(4096, "<u2"), (65_499, "<u2"), (65_500, "<i4"), (128_256, "<i4")]
)
def test_the_dtype_is_the_one_that_megatron_takes(vocab_size, dtype):
    assert token_dtype(vocab_size) == np.dtype(dtype)


def test_the_index_is_megatrons():
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4)
    index += struct.pack("<3i", 3, 1, 2) + struct.pack("<3q", 0, 6, 8) + struct.pack("<4q", 0, 1, 2, 3)
    assert index_bytes(np.array([3, 1, 2]), np.dtype("<u2")) == index
    assert index_size(3) == len(index)


def columns(ids, tokens, policy=POLICY):
    """Documents in the order of their keys."""
    order = np.lexsort((ids, keys(parse_ids(ids), policy.seed)))
    return Documents(
        ids=parse_ids([ids[i] for i in order]),
        tokens=np.concatenate([np.array(tokens[i]) for i in order]),
        lengths=np.array([len(tokens[i]) for i in order]),
        bytes=9,
        hosts=[""] * len(ids),
        origins=np.zeros(len(ids), ORIGIN),
    )


@pytest.mark.parametrize(
    "tokens, what",
    [([[1], [1000]], "outside the"), ([[1], [-1]], "outside the"), ([[1], []], "has 0 tokens")],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path, tokens, what):
    with pytest.raises(ShardError, match=what) as error, ShardWriter(tmp_path, POLICY) as writer:
        writer.append(columns([name(0), name(1)], tokens))
    assert name(1) in str(error.value)
    assert not list(tmp_path.iterdir())


def test_documents_out_of_order_or_twice_are_refused(tmp_path):
    found = columns([name(n) for n in range(4)], [[1]] * 4)
    for again in (found, columns([found.ids[3].tobytes().hex()], [[1]])):
        with ShardWriter(tmp_path, POLICY) as writer:
            writer.append(found)
            with pytest.raises(ShardError, match="out of the order"):
                writer.append(again)


@pytest.mark.parametrize("bad", ["", "ab", "g" * 32, "A" * 32, "a" * 31, "a" * 33, " " + "a" * 31])
def test_what_is_no_id_is_named(bad):
    with pytest.raises(ShardError, match="is not a document id"):
        parse_ids([name(1), bad])


def test_batches_do_not_change_a_byte(tmp_path):
    made = documents(300, longest=9000)
    whole = columns([d.id for d in made], [d.tokens for d in made])
    infos = []
    for cuts in ([], [1], [100, 101, 250]):
        ends = np.cumsum(whole.lengths)
        with ShardWriter(tmp_path, POLICY) as writer:
            for start, stop in zip([0, *cuts], [*cuts, 300], strict=True):
                first = ends[start - 1] if start else 0
                writer.append(
                    Documents(
                        whole.ids[start:stop],
                        whole.tokens[first : ends[stop - 1]],
                        whole.lengths[start:stop],
                        9 if start == 0 else 0,
                        whole.hosts[start:stop],
                        whole.origins[start:stop],
                    )
                )
            infos.append(writer.finish())
    assert infos[0] == infos[1] == infos[2]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_policy_that_its_dtype_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="holds ids up to 65535"):
        Policy(tokenizer="ab" * 32, vocab_size=65_537, dtype="<u2", eos_id=0)
    with pytest.raises(ValueError, match="separator"):
        Policy.of("ab" * 32, vocab_size=10, eos_id=10, seed=0)
