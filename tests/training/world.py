"""What training tests start from: a store that holds tiny real shards, a tokenizer and a passing gate."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.manifest import Artifact, Output, Spec
from bloomery.artifacts.run import Outcome, commit, run_stage
from bloomery.artifacts.store import LocalStore, Store
from bloomery.config.base import Config
from bloomery.config.gates import ShardGateConfig
from bloomery.config.model import ModelConfig
from bloomery.config.parallel import ParallelConfig
from bloomery.config.run import Execution
from bloomery.config.training import TrainConfig
from bloomery.shards.dataset import Dataset, Policy
from bloomery.shards.write import Document, write_dataset
from spark_jobs.mixture import Share
from training.stages import TRAIN

MODEL = ModelConfig(layers=2, width=36, heads=6, kv_heads=3, ffn_width=50)
"""Odd sizes, so that ranks cut rows."""
TINY = TrainConfig(
    model=MODEL,
    sequence_length=32,
    global_batch=8,
    steps=20,
    warmup_steps=4,
    learning_rate=3e-3,
    clip=0.3,
    held_out_every=10,
    held_out_sequences=5,
)
SPREAD = ParallelConfig(ranks=2, micro_batch=2, checkpoint_every=5, device="cpu")

SUBJECTS = ["the smith", "bellows a furnace", "ore an old hammer", "iron his apprentice a bloom"]
VERBS = ["melts", "strikes", "feeds", "cools", "turns", "carries"]


def documents(count: int, seed: int = 0) -> list[str]:
    """Small English-like documents."""
    random = np.random.default_rng(seed)
    pick = lambda words: words[int(random.integers(len(words)))]  # noqa: E731
    sentences = lambda: f"{pick(SUBJECTS)} {pick(VERBS)} {pick(SUBJECTS)} and then {pick(VERBS)} it. "  # noqa: E731
    return ["".join(sentences() for _ in range(int(random.integers(2, 9)))) for _ in range(count)]


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_shards(
    folder: Path, splits: Mapping[str, list[str]], tokenizer: Tokenizer, target_bytes: int = 8192
) -> str:
    """Writes a dataset of one source; returns its digest."""
    vocab_size, eos = tokenizer.get_vocab_size(), tokenizer.token_to_id("<|endoftext|>")
    policy = Policy.of(sha256(tokenizer.to_str().encode()), vocab_size, eos, seed=1)
    found = {
        split: {
            "corpus": [
                Document(
                    id=hashlib.sha256(f"{split}{number}".encode()).hexdigest()[:32],
                    tokens=[*tokenizer.encode(text).ids, eos],
                    bytes=len(text.encode()),
                    path=f"{split}.txt",
                )
                for number, text in enumerate(texts)
            ]
        }
        for split, texts in splits.items()
    }
    return write_dataset(folder, found, policy, target_bytes=target_bytes)


@dataclass
class World:
    """A store with a dataset."""

    store: Store
    upstream: dict[str, str]

    def sources(self) -> dict[str, str]:
        """What a journal's head says of its inputs."""
        return {name: self.upstream[name] for name in ("shard", "tokenizer", "mixture")}

    def train(
        self, config: TrainConfig = TINY, parallel: ParallelConfig = SPREAD, log=print, lease: float = 2.0
    ) -> Outcome:
        """Runs the stage as Airflow's task does."""
        about = {"config": "0" * 64, "name": "tiny"}
        return run_stage(
            TRAIN,
            config,
            self.upstream,
            self.store,
            execution=Execution(parallelism=parallel),
            policies={"shard_gate": ShardGateConfig()},
            about=about,
            log=log,
            lease=lease,
        )


def make_world(
    folder: Path,
    splits: Mapping[str, list[str]] | None = None,
    vocab_size: int = 411,
    store: Store | None = None,
) -> World:
    """A store (at `folder`, unless given) with a dataset, as the data plane leaves it."""
    splits = splits or {"train": documents(120), "held_out": documents(20, seed=1)}
    store = store or LocalStore(folder)
    tokenizer = train_tokenizer(splits["train"], vocab_size)
    text = tokenizer.to_str().encode()
    store.put_new("data/tokenizer/t/1/tokenizer", text)
    made = {"tokenizer": Artifact(Output(digest=sha256(text)), "data/tokenizer/t/1/tokenizer", store)}
    upstream = {"tokenizer": put(store, "tokenizer", {}, made)}
    place = "data/shard/s/1/shards"
    with tempfile.TemporaryDirectory() as scratch:
        shards = Output(digest=write_shards(Path(scratch), splits, tokenizer))
        totals = Dataset.open(Path(scratch)).manifest.streams
        for path in (path for path in Path(scratch).rglob("*") if path.is_file()):
            store.upload(path, f"{place}/{path.relative_to(scratch).as_posix()}")
    upstream["shard"] = put(store, "shard", {}, {"shards": Artifact(shards, place, store)})
    tokens = totals["train"]["corpus"].tokens
    share = Share(weight=1.0, tokens=tokens, held=tokens, epochs=1.0, max_epochs=100.0)
    plan = canonical({"corpus": share._asdict()})
    store.put_new("data/mixture/m/1/plan", plan)
    made = {"plan": Artifact(Output(digest=sha256(plan)), "data/mixture/m/1/plan", store)}
    upstream["mixture"] = put(store, "mixture", {"shards": shards.digest}, made)
    verdict = Output(digest="0" * 64, facts={"passed": True, "failed": []})
    store.put_new("data/shard_gate/v", b"{}")
    upstream["shard_gate"] = put(
        store,
        "shard_gate",
        {"shards": shards.digest},
        {"verdict": Artifact(verdict, "data/shard_gate/v", store)},
        ShardGateConfig(),
    )
    return World(store, upstream)


def put(
    store: Store,
    stage: str,
    inputs: dict[str, str],
    outputs: dict[str, Artifact],
    config: Config | None = None,
) -> str:
    """Commits outputs as if `stage` had made them; returns the manifest's digest."""
    spec = Spec(
        stage=stage,
        version=1,
        config=json.loads(config.model_dump_json()) if config else {},
        inputs=inputs,
        libraries={},
    )
    return commit(store, spec, outputs, {}, "1", 0.0).digest
