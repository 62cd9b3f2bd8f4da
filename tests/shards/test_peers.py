"""Other trainers' own readers open our shards and exports, and read the same tokens of all documents."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import READERS, peer
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import LocalStore
from bloomery.shards.dataset import Dataset, Policy
from bloomery.shards.export import export
from bloomery.shards.write import write_dataset
from tests.shards.data import POLICY, documents
from tests.shards.peers_read import WINDOW

WIDE = Policy.of("cd" * 32, vocab_size=100_000, eos_id=0, seed=3)


def made(policy: Policy, count: int, seed: int) -> list:
    """Documents whose ids reach up to the vocabulary's end."""
    scale = (policy.vocab_size - 1) // (POLICY.vocab_size - 1)
    return [d._replace(tokens=np.asarray(d.tokens) * scale) for d in documents(count, seed)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("policy", [POLICY, WIDE], ids=lambda policy: policy.dtype)
def test_peers_read_the_same_tokens(tmp_path, policy):
    python = peer("readers", READERS, borrow=True)
    splits = {
        "train": {"web": made(policy, 300, 0), "books": made(policy, 60, 1)},
        "held_out": {"web": made(policy, 20, 2)},
    }
    store = LocalStore(tmp_path)
    digest = write_dataset(tmp_path / "shards", splits, policy, target_bytes=4096)
    for kind in ("npy", "ds", "mds"):
        export(Artifact(Output(digest=digest), "shards", store), kind, tmp_path / "exports" / kind)
    script = Path(__file__).parent / "peers_read.py"
    command = [python, "-P", script, tmp_path / "shards", tmp_path / "exports", str(policy.eos_id)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    opened = Dataset.open(tmp_path / "shards")
    for stream in opened.streams():
        name = f"{stream.split}/{stream.source}"
        shards = [stream.shard(number) for number in range(len(stream.table))]
        by_name = sorted(shards, key=lambda shard: shard.info.name)
        assert len(shards) > 1 or stream.split == "held_out"
        documents_of = lambda shard: [shard.document(n).tolist() for n in range(len(shard))]  # noqa: E731
        every = [document for shard in shards for document in documents_of(shard)]
        assert found["megatron"][name] == [d for shard in by_name for d in documents_of(shard)]
        assert found["memmap"][name] == [shard.tokens.tolist() for shard in by_name]
        assert found["streaming"][name] == found["olmo_documents"][name] == every
        assert found["datatrove"][name] == [[token for document in every for token in document]]
        assert found["olmo_windows"][name] == windows([shard.tokens for shard in shards])
        assert found["olmo_bin"][name] == windows([shard.tokens for shard in by_name])
        assert found["datatrove_positions"][name] == windows([positions(shard) for shard in shards])
    assert max(max(d) for d in found["megatron"]["train/web"]) > policy.vocab_size // 2


def windows(files: list) -> list[list[int]]:
    """Whole windows of each file."""
    return [
        ids[start : start + WINDOW].tolist()
        for ids in files
        for start in range(0, len(ids) - WINDOW + 1, WINDOW)
    ]


def positions(shard) -> np.ndarray:
    """Position of each token in its document, or in its window if that begins later."""
    at = np.arange(shard.info.tokens)
    starts = shard.side.starts[np.searchsorted(shard.side.starts, at.astype(np.uint32), "right") - 1]
    return at - np.maximum(starts, at // WINDOW * WINDOW)
