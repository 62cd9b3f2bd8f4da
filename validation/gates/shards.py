"""The gate on token shards: the files are what their manifest says, and there is enough of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.gates import ShardGateConfig
from bloomery.shards.format import open_shard
from validation.gates.suite import Check, judge
from validation.gates.verdict import verdict


def body(context: Context) -> Mapping[str, Artifact]:
    """Hashes and opens every shard, lets the suite judge one row a shard, and returns the verdict."""
    import pandas as pd

    policy: ShardGateConfig = context.config
    folder = context.inputs["shards"].local(context.scratch)
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = []
    for split, entry in manifest["splits"].items():
        for shard in entry["shards"]:
            files = {kind: folder / split / f"{shard['name']}.{kind}" for kind in ("bin", "idx")}
            hashes = [file_digest(path) == shard[f"{kind}_sha256"] for kind, path in files.items()]
            opened = open_shard(folder / split, shard["name"])
            rows.append(
                {
                    "damaged": float(hashes.count(False)),
                    "missing_tokens": float(shard["tokens"] - sum(opened.lengths.tolist())),
                    "greatest_token": float(max(int(opened.tokens.max()), 0)) if shard["tokens"] else 0.0,
                }
            )
    train = manifest["splits"]["train"]
    survivors = context.inputs["documents"].output.facts["status"].get("kept", 0)
    documents = sum(entry["documents"] for entry in manifest["splits"].values())
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
        Check("damaged", "files of a shard whose sha256 is not the manifest's", at_most=0),
        Check(
            "missing_tokens", "tokens that the manifest counts and the index does not", at_least=0, at_most=0
        ),
        Check("greatest_token", "greatest token id", at_least=0, at_most=manifest["vocab_size"] - 1),
    ]
    counts = {split: entry["tokens"] for split, entry in manifest["splits"].items()}
    return verdict(context, "shard_gate", judge(frame, checks), {"Tokens": counts})
