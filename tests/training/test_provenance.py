"""What a run has read is told from its config and shards: both ways, quickly, and a replay agrees with it."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict

import numpy as np
import pytest
from typer.testing import CliRunner

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.journal import Journal
from bloomery.artifacts.refs import move_ref
from bloomery.artifacts.store import LocalStore
from bloomery.cli import app
from bloomery.config.settings import settings
from bloomery.config.training import ScheduleConfig
from bloomery.errors import BloomeryError
from bloomery.shards.format import ShardError
from bloomery.shards.lookup import UnknownDocumentError, locate, locate_known
from tests.training.ranks import Ranks
from tests.training.world import SPREAD, TINY, make_world
from training.data import open_data
from training.loader import plan_steps, read_steps
from training.provenance import find_run, open_run, replay, trace_document, trace_step
from training.takedown import take_down, tombstones


@pytest.fixture(scope="module", params=["concat", "best_fit"])
def trained(request, tmp_path_factory):
    """A run that stopped after 12 of 20 steps, and its ranks."""
    folder = tmp_path_factory.mktemp("provenance")
    ranks = Ranks(make_world(folder / "store"), folder / "ranks", sha256(request.param.encode()))
    train = TINY.model_copy(update={"schedule": ScheduleConfig(packing=request.param, documents=6)})
    ranks.train(ranks.job(train, SPREAD.model_copy(update={"checkpoint_every": 50})), stop_at=12)
    return ranks, train, opened(ranks)


def opened(ranks):
    return open_run(
        ranks.world.store, ranks.run, ranks.folder / "cache", ranks.folder / "tables", tokens=True
    )


def test_steps_and_documents_tell_the_same(trained):
    _, _, run = trained
    seen = defaultdict(set)
    for step in range(20):
        parts = trace_step(run, step)
        assert {part.sample for part in parts} == set(range(8 * step, 8 * step + 8))
        for part in parts:
            seen[part.document].add((step, part.sample))
            assert part.origin.path == "train.txt"
    assert len(seen) > 60
    for document, exposures in seen.items():
        found, told = trace_document(run, document)
        assert {(e.step, e.sample) for e in told} == exposures
        assert all(e.done == (e.step < 12) for e in told)
        assert found.source == "corpus"


def test_the_parts_of_a_step_are_its_tokens(trained):
    _, _, run = trained

    [batch] = read_steps(run.data, plan_steps(run.data, 5, 1, 0, 1))
    reader, parts, rows = run.data.readers[0], trace_step(run, 5), defaultdict(list)
    for part in parts:
        [found] = locate(run.data.dataset, [part.document])
        shard = reader.shards.open(found.shard)
        tokens = shard.document(found.position)[part.first : part.first + part.tokens]
        rows[part.sample].append((part, tokens))
    for row, sample in enumerate(sorted(rows)):
        held = np.sort(np.concatenate([tokens for _, tokens in rows[sample]]))
        whole = np.append(batch.inputs[row], batch.targets[row][-1:])
        whole = np.sort(whole[whole >= 0])
        assert set(held.tolist()) >= set(whole.tolist()) - {run.data.eos_id}


def test_each_question_is_answered_in_50_ms(trained):
    _, _, run = trained
    document = trace_step(run, 3)[0].document
    for question in (lambda: trace_step(run, 7), lambda: trace_document(run, document)):
        seconds = []
        for _ in range(5):
            began = time.process_time()
            question()
            seconds.append(time.process_time() - began)
        print(f"{min(seconds) * 1e3:.1f} ms")
        assert min(seconds) < 0.05


def test_a_replay_finds_what_the_ranks_read(trained):
    _, _, run = trained
    assert [(found.step, found.right) for found in replay(run)] == [(step, True) for step in range(12)]
    marks = list(run.history.marks)
    marks[7] = "0" * 24
    history = run.history.model_copy(update={"marks": tuple(marks)})
    with pytest.raises(BloomeryError, match="its history's marks make"):
        list(replay(dataclasses.replace(run, history=history)))


def test_a_replay_names_the_first_step_that_differs(trained):
    """A run whose history and receipt are whole, but which read another order than its config says."""
    _, train, run = trained
    other = train.model_copy(update={"seed": 2})
    share = {"weight": 1.0, "tokens": 0, "held": run.data.readers[0].stream.tokens, "max_epochs": 4.0}
    data = open_data(
        run.data.dataset, other, {"corpus": share}, run.index.tokenizer, run.cache.with_name("tables")
    )
    found = list(replay(dataclasses.replace(run, data=data)))
    assert not any(step.right for step in found)


def test_a_document_that_is_taken_down_is_not_read_again(trained):
    ranks, train, run = trained
    store, dataset = ranks.world.store, run.shards.output.digest
    later = [part.document for step in range(12, 20) for part in trace_step(run, step)]
    seen = [e.step for e in trace_document(run, later[0])[1]]
    [found] = locate(run.data.dataset, [later[0]])
    take_down(store, dataset, [found])
    take_down(store, dataset, [found])
    stones = tombstones(store, dataset, 12, lambda names: pytest.fail(f"{names} are known"))
    assert [(stone.document, stone.since) for stone in stones] == [(later[0], 12)]
    assert ranks.train(ranks.job(train, SPREAD, resume=ranks.at(12), tombstones=stones)) == [None, None]
    after = opened(ranks)
    assert after.index.step == 20
    assert [e.step for e in trace_document(after, later[0])[1]] == [step for step in seen if step < 12]
    read = list(replay(after))
    assert len(read) == 20
    assert all(step.right for step in read)


def test_a_document_that_is_taken_down_is_not_in_the_next_dataset_either(trained, tmp_path):
    """A newcomer's next snapshot held the document again, and the next run was trained on it."""
    _, _, run = trained
    store, dataset = LocalStore(tmp_path), run.data.dataset
    train = [sha256(b"train%d" % n)[:32] for n in range(3)]
    held_out = sha256(b"held_out0")[:32]
    move_ref(
        store,
        "takedowns/" + "1" * 64,
        {
            "digest": "1" * 64,
            "documents": {
                name: {"source": "corpus", "start": 0, "stop": 9, "when": 1.0}
                for name in (train[0], held_out, "f" * 32)
            },
        },
        None,
    )
    asked = []

    def find(names):
        asked.append(names)
        return locate_known(dataset, names)

    digest = run.shards.output.digest
    assert tombstones(LocalStore(tmp_path / "none"), digest, 0, find) == () and not asked
    [stone] = tombstones(store, digest, 4, find)
    [found] = locate(dataset, [train[0]])
    assert (stone.document, stone.start, stone.stop, stone.since) == (train[0], found.start, found.stop, 4)
    assert tombstones(store, digest, 7, find) == (stone.model_copy(update={"since": 7}),)
    assert len(asked) == 1 and sorted(asked[0]) == sorted([train[0], held_out, "f" * 32])
    take_down(store, digest, locate(dataset, [train[1]]))
    assert {s.document for s in tombstones(store, digest, 8, find)} == {train[0], train[1]}
    take_down(store, "2" * 64, locate(dataset, [train[2]]))
    assert {s.document for s in tombstones(store, digest, 9, find)} == set(train)
    assert asked[1:] == [[train[2]]]


def test_what_is_not_there_is_named(trained):
    ranks, _, run = trained
    store = ranks.world.store
    assert find_run(store, ranks.run[:10]) == ranks.run
    with pytest.raises(BloomeryError, match="no run is named 'nothing', and 0 have such a key"):
        find_run(store, "nothing")
    Journal(store, "e" * 64).open(1, {"name": "twice"})
    Journal(store, "d" * 64).open(1, {"name": "twice"})
    assert find_run(store, "twice") == "d" * 64
    Journal(store, "d" * 63 + "e").open(1, {"name": "other"})
    with pytest.raises(BloomeryError, match=r"2 have such a key: ddd.*step 0"):
        find_run(store, "dddd")
    with pytest.raises(BloomeryError, match="has no step 20"):
        trace_step(run, 20)
    with pytest.raises(UnknownDocumentError):
        trace_document(run, "0" * 32)
    [held_out] = locate(run.data.dataset, [sha256(b"held_out0")[:32]])
    with pytest.raises(ShardError, match="held out"):
        take_down(store, "0" * 64, [held_out])
    assert trace_document(run, held_out.id)[1] == []


def test_the_command_line_answers(trained, monkeypatch, tmp_path):
    ranks, _, run = trained
    monkeypatch.setenv("BLOOMERY_HOME", str(tmp_path))
    monkeypatch.setenv("BLOOMERY_STORE", ranks.world.store.uri)
    settings.cache_clear()

    def said(*words):
        found = CliRunner().invoke(app, list(words))
        assert found.exit_code == 0, found.output
        return found.output

    document = trace_step(run, 3)[-1].document
    assert document in said("trace", ranks.run[:9], "--step", "3")
    assert '"step": 3,' in said("trace", ranks.run[:9], "--doc", document)
    assert "steps are as their receipt says" in said("verify-run", ranks.run[:9])
    shard = next(path for path in ranks.world.store.root.glob("data/**/*.bin") if "train" in path.parts)
    whole = shard.read_bytes()
    shard.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    lost = CliRunner().invoke(app, ["verify-run", ranks.run[:9]])
    shard.write_bytes(whole)
    assert "cannot be read any more: " in str(lost.exception) and shard.name in str(lost.exception)
    assert f"taken down; steps of run {ranks.run[:12]} that saw it: " in said(
        "takedown", ranks.run[:9], "--doc", document
    )
    refused = CliRunner().invoke(app, ["trace", ranks.run[:9]])
    assert "one of --step and --doc" in str(refused.exception)
    settings.cache_clear()
