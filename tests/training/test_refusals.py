"""What cannot be trained on is refused before step 0: what was found, what was expected, and the remedy."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.digests import file_digest
from bloomery.errors import BloomeryError
from bloomery.shards.dataset import Dataset, table_path
from bloomery.shards.format import DamagedError
from bloomery.shards.table import COLUMNS
from tests.shards.data import POLICY
from tests.training.corpus import config, opened, planned, write
from training.data import check_shards, open_data
from training.job import TrainingError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "shards")


def test_another_tokenizer(corpus, tmp_path):
    with pytest.raises(TrainingError, match=f"tokenizer {POLICY.tokenizer}, the run has {'0' * 64}"):
        open_data(corpus, config(), planned(corpus), "0" * 64, tmp_path)


def test_a_vocabulary_that_is_larger_than_the_dtype(corpus, tmp_path):
    copy = shutil.copytree(corpus.folder, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["policy"]["vocab_size"] = 70_000
    (copy / "manifest.json").write_bytes(canonical(manifest))
    with pytest.raises(DamagedError, match=r"vocab_size 70000.*<u2 holds ids up to 65535"):
        Dataset.open(copy)


def with_table(corpus, folder, column, row, value):
    """A copy whose table of `web` says something else, its manifest included."""
    copy = shutil.copytree(corpus.folder, folder)
    path = copy / table_path("train", "web")
    data, shards = bytearray(path.read_bytes()), corpus.manifest.streams["train"]["web"].shards
    at = sum(
        kind.itemsize * shards
        for name, kind in COLUMNS.items()
        if list(COLUMNS).index(name) < list(COLUMNS).index(column)
    )
    data[at + 8 * row : at + 8 * row + 8] = np.uint64(value).tobytes()
    path.write_bytes(data)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["streams"]["train"]["web"]["sha256"] = file_digest(path)
    (copy / "manifest.json").write_bytes(canonical(manifest))
    return copy


def test_an_empty_shard(corpus, tmp_path):
    copy = with_table(corpus, tmp_path / "copy", "documents", 2, 0)
    with pytest.raises(DamagedError, match=r"\.bin: an empty shard"):
        check_shards(Dataset.open(copy), in_place=True)


def test_a_manifest_and_files_that_disagree(corpus, tmp_path):
    check_shards(corpus, in_place=True)
    for suffix in ("bin", "idx", "side"):
        copy = shutil.copytree(corpus.folder, tmp_path / suffix)
        victim = sorted((copy / "train" / "code").glob(f"*.{suffix}"))[3]
        victim.write_bytes(victim.read_bytes() + b"\0")
        with pytest.raises(DamagedError, match=victim.name):
            check_shards(Dataset.open(copy), in_place=True)
        victim.unlink()
        with pytest.raises(DamagedError, match=rf"{victim.name}: no bytes, the table says \d+"):
            check_shards(Dataset.open(copy), in_place=True)
    mixed = dict(planned(corpus))
    mixed["web"] = {**mixed["web"], "held": 5}
    with pytest.raises(
        TrainingError, match="the mixture is of 5 training tokens of web, the shards hold 14,"
    ):
        open_data(corpus, config(), mixed, POLICY.tokenizer, tmp_path)


def test_a_run_that_is_longer_than_its_data(corpus):
    weights = {"books": 1, "code": 1, "web": 1}
    held = corpus.manifest.streams["train"]["books"].tokens
    steps = 4 * held * 3 // (8 * 16)
    opened(corpus, config(steps=steps), weights, max_epochs=4.0)
    with pytest.raises(TrainingError, match=rf"books: .* epochs of its {held:,} tokens, max_epochs 4"):
        opened(corpus, config(steps=steps + 2), weights, max_epochs=4.0)


def test_a_source_that_is_too_short_or_unknown(corpus):
    with pytest.raises(
        TrainingError, match=r"books has 3,387 training tokens, fewer than a sequence of 4000 \+ 1"
    ):
        opened(corpus, config(sequence_length=4000, steps=1, global_batch=1), max_epochs=9.0)
    only = {"books": 0, "code": 0, "web": 1}
    assert len(opened(corpus, config(sequence_length=4000, steps=1), only).feed.sources) == 1
    schedule = {"mixture": [{"from_step": 3, "weights": {"web": 1}}]}
    with pytest.raises(
        TrainingError,
        match=r"schedule\.mixture at step 3 names web; the mixture's sources are books, code, web",
    ):
        opened(corpus, config(schedule=schedule))


def test_the_launcher_refuses_before_a_rank_starts(tmp_path, home):
    from tests.training.world import TINY, make_world

    world, lines = make_world(tmp_path / "store"), []
    with pytest.raises(BloomeryError, match="longer than its data") as caught:
        world.train(TINY.model_copy(update={"steps": 90_000}), log=lines.append)
    assert not caught.value.retry
    assert lines == []
