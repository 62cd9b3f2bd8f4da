"""A dataset whose event was lost is found by the clock, once; one that is to end with `corpus` is not."""

from __future__ import annotations

import json

from bloomery.airflow import work
from bloomery.artifacts.journal import Journal
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.config.run import parse
from tests.training.world import put

CONFIG = 'name: NAME\ncorpus: {snapshot: {sources: [{name: a, uri: "/data"}]}}\n'


def publish(store, name: str, until: str) -> dict[str, str]:
    item = dict.fromkeys(work.DATA_STAGES, "0" * 64)
    item |= {"name": name, "until": until, "config": work.keep_config(parse(CONFIG.replace("NAME", name)))}
    for stage, output in (("shard", "shards"), ("tokenizer", "tokenizer"), ("mixture", "plan")):
        store.put_new(f"data/{stage}/{name}", b"x")
        made = Artifact(Output(digest=f"{name}-{stage}"), f"data/{stage}/{name}", store)
        item[stage] = put(store, stage, {"of": name}, {output: made})
    return work.publish(item, lambda _: None)


def test_a_lost_dataset_event_is_found_by_the_clock_until_its_training_starts(store):
    publish(store, "ends-early", "corpus")
    item = publish(store, "lost", "release")
    assert work.unstarted() == [item]
    Journal(store, work._train_key(item)).open(1)
    assert work.unstarted() == []
    ref = json.loads(store.read("refs/datasets/lost/published"))
    assert ref["manifest"] == item["shard"]  # what `show` and `lineage` of the ref print
