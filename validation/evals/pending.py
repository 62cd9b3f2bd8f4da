"""What is to be evaluated: {live checkpoints of all runs} minus {those with an eval}. Pure in the store.

So a lost, doubled or merged wake-up changes nothing: whoever asks finds the same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.manifest import read_manifest
from bloomery.artifacts.refs import list_refs
from bloomery.artifacts.run import finished
from bloomery.artifacts.store import Store
from bloomery.config.release import EvaluateConfig
from bloomery.config.run import parse
from validation.stages import EVALUATE


class Pending(NamedTuple):
    """A live checkpoint without an eval, and all that stage `evaluate` needs."""

    config: str
    """Digest of the run's config."""
    name: str
    """Name of the run."""
    run: str
    """Key of its train stage."""
    step: int
    checkpoint: str
    shard: str
    tokenizer: str

    @property
    def upstream(self) -> dict[str, str]:
        """Stage name -> manifest digest, as run_stage takes it."""
        return {"checkpoint": self.checkpoint, "shard": self.shard, "tokenizer": self.tokenizer}


def pending(store: Store) -> list[Pending]:
    """The live checkpoints without an eval, by run and step."""
    found = []
    for ref in list_refs(store, "runs/"):
        if not ref.name.endswith("/head"):
            continue
        value, run = ref.value, ref.name.split("/")[1]
        config = parse(store.read(f"cas/{value['config']}").decode(), value["config"]).evaluate
        for checkpoint in Journal(store, run).live():
            item = Pending(
                value["config"],
                value["name"],
                run,
                checkpoint.step,
                checkpoint.digest,
                value["shard"],
                value["tokenizer"],
            )
            if evaluation(store, config, item.upstream) is None:
                found.append(item)
    return found


def evaluation(store: Store, config: EvaluateConfig, upstream: Mapping[str, str]) -> str | None:
    """Digest of the eval's manifest, or None.

    Args:
        store: where everything stands.
        config: what is measured.
        upstream: manifests of `shard`, `tokenizer`, and of `checkpoint` (one of the journal's) or `train`
            (its last one).
    """
    if "checkpoint" in upstream:
        weights = read_manifest(store, upstream["checkpoint"]).outputs["weights"]
    else:
        weights = read_manifest(store, upstream["train"]).outputs["checkpoint"]
    contents = {
        "checkpoint": weights.digest,
        "shards": read_manifest(store, upstream["shard"]).outputs["shards"].digest,
        "tokenizer": read_manifest(store, upstream["tokenizer"]).outputs["tokenizer"].digest,
    }
    found = finished(store, EVALUATE.spec(config, contents).key)
    return found.digest if found else None
