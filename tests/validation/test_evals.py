"""Which checkpoints are evaluated, and what an eval says."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.run import artifact, run_stage
from bloomery.config.release import EvaluateConfig
from bloomery.shards.stream import TokenStream
from tests.validation.conftest import CONFIG
from training.checkpoint import Reader
from validation.evals.evaluate import load_model
from validation.evals.pending import evaluation, pending
from validation.stages import EVALUATE


def evaluate(trained, item):
    about = {"config": item.config, "name": item.name}
    return run_stage(EVALUATE, CONFIG.evaluate, item.upstream, trained.world.store, about=about).digest


def test_whatever_wakes_it_the_same_checkpoints_are_evaluated(trained):
    """Wake-ups lost, doubled, merged: each live checkpoint gets one eval, then nothing is left."""
    store = trained.world.store
    items = pending(store)
    assert [item.step for item in items] == [10, 15, 20]
    assert {(item.name, item.config) for item in items} == {("tiny", trained.config)}
    assert pending(store) == items

    first = evaluate(trained, items[1])  # one wake-up came, the others were lost
    assert [item.step for item in pending(store)] == [10, 20]
    assert evaluate(trained, items[1]) == first  # doubled
    with ThreadPoolExecutor(4) as pool:  # merged, and at once
        list(pool.map(lambda item: evaluate(trained, item), [*pending(store), *items]))
    assert pending(store) == []

    last = evaluation(store, CONFIG.evaluate, trained.upstream)
    assert last == evaluation(store, CONFIG.evaluate, items[2].upstream)
    other = EvaluateConfig(max_tokens=256)
    assert evaluation(store, other, trained.upstream) is None


def test_a_checkpoint_that_is_not_live_is_not_evaluated(trained):
    journal = Journal(trained.world.store, trained.ranks.run)
    assert [checkpoint.step for checkpoint in journal.live()] == [10, 15, 20]


def test_bits_per_byte_are_those_of_the_text(trained, tmp_path):
    """The score of the whole split, recomputed a sequence at a time from the decoded text."""
    store = trained.world.store
    items = trained.ranks.journal.live()
    upstream = {**trained.world.sources(), "checkpoint": items[-1].digest}
    outcome = run_stage(EVALUATE, EvaluateConfig(), upstream, store, about={"name": "tiny"})
    found = json.loads(artifact(store, outcome.digest, "eval").read())

    weights = trained.ranks.journal.weights(items[-1])
    model = load_model(Reader(weights.local(tmp_path), weights.output.digest))
    stream = TokenStream.open(artifact(store, upstream["shard"], "shards").local(tmp_path), "held_out")
    text = artifact(store, upstream["tokenizer"], "tokenizer").read()
    tokenizer = Tokenizer.from_str(text.decode())
    nats, size = 0.0, 0
    for number in range(stream.sequences(32)):
        ids, positions = (torch.from_numpy(part) for part in stream.gather(np.array([number]), 32))
        ids = ids[0]
        lengths = np.diff([*np.flatnonzero(positions[0] == 0), 32]).tolist()
        with torch.no_grad():  # each document by itself
            scores = torch.cat([model(part[None])[0] for part in ids[:-1].split(lengths)]).log_softmax(-1)
        nats -= scores[torch.arange(32), ids[1:]].sum().item()
        size += len(tokenizer.decode(ids[1:].tolist(), skip_special_tokens=True).encode())
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert found["tokens"] == 32 * stream.sequences(32)
    assert found["step"] == 20
    assert found["sample"].startswith("The")
    assert outcome.manifest.outputs["eval"].facts["bits_per_byte"] == found["bits_per_byte"]
