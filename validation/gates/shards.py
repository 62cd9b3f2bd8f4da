"""The gate on token shards: the files are what their manifest says, and there is enough of them."""

from __future__ import annotations

from collections.abc import Mapping

from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.gates import ShardGateConfig
from bloomery.shards.dataset import Dataset, Stream
from validation.gates.suite import Check, judge
from validation.gates.verdict import verdict


def body(context: Context) -> Mapping[str, Artifact]:
    """Hashes and opens every shard, lets the suite judge one row a shard, and returns the verdict."""
    import pandas as pd

    policy: ShardGateConfig = context.config
    shards = context.inputs["shards"]
    dataset = Dataset.open(shards.local(context.scratch), shards.output.digest)
    rows = [_row(stream, number) for stream in dataset.streams() for number in range(len(stream.table))]
    splits = {split: dataset.manifest.totals(split) for split in dataset.manifest.streams}
    train = splits["train"]
    survivors = context.inputs["documents"].output.facts["status"].get("kept", 0)
    documents = sum(entry["documents"] for entry in splits.values())
    totals = {
        "tokens": float(train["tokens"]),
        "bytes_per_token": train["bytes"] / train["tokens"] if train["tokens"] else 0.0,
        "missing_documents": float(survivors - documents),
    }
    frame = pd.DataFrame([row | totals for row in rows] or [totals])
    checks = [
        Check("tokens", "training tokens", at_least=policy.min_tokens),
        Check("bytes_per_token", "bytes of text a token", at_least=policy.min_bytes_per_token),
        Check("missing_documents", "survivors that no shard holds", at_least=0, at_most=0),
        Check("damaged", "files of a shard whose sha256 is not its table's", at_most=0),
        Check(
            "greatest_token", "greatest token id", at_least=0, at_most=dataset.manifest.policy.vocab_size - 1
        ),
    ]
    counts = {split: entry["tokens"] for split, entry in splits.items()}
    return verdict(context, "shard_gate", judge(frame, checks), {"Tokens": counts})


def _row(stream: Stream, number: int) -> dict[str, float]:
    """What is found of a shard; the greatest token of a damaged one is not asked for."""
    info = stream.table[number]
    files = [(stream.folder / name, expected) for name, expected in info.files().items()]
    damaged = sum(not path.is_file() or file_digest(path) != expected for path, expected in files)
    greatest = 0 if damaged else int(stream.shard(number).tokens.max())
    return {"damaged": float(damaged), "greatest_token": float(greatest)}
