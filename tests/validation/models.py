"""What release tests start from: candidates with real files, real signatures, and evals as given."""

from __future__ import annotations

import hashlib

from bloomery.artifacts.digests import tree_digest
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import Store
from tests.training.world import put
from validation.release.promote import Candidate


def make_candidate(store: Store, name: str, bits_per_byte: float, shards: str = "5" * 64) -> Candidate:
    """A model's folder of two small files and an eval of the same checkpoint."""
    checkpoint = hashlib.sha256(name.encode()).hexdigest()
    files = {"model.safetensors": f"weights of {name}".encode(), "sub/config.json": b"{}"}
    place = f"data/export/{name}/1/model"
    for relative, data in files.items():
        store.put_new(f"{place}/{relative}", data)
    digest = tree_digest({relative: hashlib.sha256(data).hexdigest() for relative, data in files.items()})
    model = Artifact(Output(digest=digest), place, store)
    facts = {"bits_per_byte": bits_per_byte, "loss": 1.0, "step": 1}
    store.put_new(f"data/evaluate/{name}", b"{}")
    measured = Artifact(Output(digest=checkpoint, facts=facts), f"data/evaluate/{name}", store)
    return Candidate(
        export=put(store, "export", {"checkpoint": checkpoint}, {"model": model}),
        evaluate=put(store, "evaluate", {"checkpoint": checkpoint, "shards": shards}, {"eval": measured}),
    )
