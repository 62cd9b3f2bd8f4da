"""Tokenization against datatrove's: the same texts (115 MB), the same 32k byte-level BPE, two cores.

    surviving documents --stage `shard`--> token ids in the order of their keys, .bin and .idx, an index table

Ours is the whole stage on a warm engine; datatrove's is its DocumentTokenizer, which shuffles, too. Memory is
the largest sum of PSS of the Python workers, and of all of datatrove's processes; the engine's JVM, which all
stages share, is printed beside it. Not named `tokenize.py`: a script's folder hides the standard library.
`make bench-tokenizing`
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks import corpora  # noqa: E402
from benchmarks.claims import Claim, report  # noqa: E402
from benchmarks.memory import Peak  # noqa: E402
from benchmarks.peers import DATATROVE, run_peer  # noqa: E402
from benchmarks.warm import warm  # noqa: E402
from bloomery.artifacts.run import artifact  # noqa: E402
from bloomery.config.corpus import TokenizerConfig  # noqa: E402

MEGABYTES = 115
VOCABULARY = 32_768


def main() -> None:
    """Measures both and reports."""
    with tempfile.TemporaryDirectory(prefix="bloomery-tokenizing-") as name:
        texts, tokenizer = Path(name, "texts"), Path(name, "tokenizer.json")
        corpora.write(Path(name, "warming"), corpora.perturbed(2))
        count, size = corpora.write(texts, corpora.perturbed(MEGABYTES))
        with warm() as bench:
            bench.survivors(texts)
            bench.run("tokenizer", TokenizerConfig(vocab_size=VOCABULARY))
            tokenizer.write_bytes(artifact(bench.store, bench.done["tokenizer"], "tokenizer").read())
            bench.survivors(Path(name, "warming"))
            bench.run("shard")
            bench.survivors(texts)
            with Peak(bench.engine) as peak:
                outcome = bench.run("shard")
            seconds, tokens = bench.seconds["shard"], outcome.manifest.outputs["shards"].tokens
        print(f"{count} documents, {size / 1e6:.0f} MB, {tokens} tokens; load {os.getloadavg()[0]:.1f}")
        print(f"ours: {seconds:.1f} s; workers {peak.mb['python']:.0f} MB, JVM {peak.mb['java']:.0f} MB")
        theirs = run_peer(
            "datatrove", DATATROVE, "datatrove_tokenize.py", *map(str, (texts, tokenizer)), f"{name}/peer"
        )
        print(
            f"datatrove: {theirs['seconds']:.1f} s, {theirs['tokens']:.0f} tokens, {theirs['peak_mb']:.0f} MB"
        )
    mb = size / 1e6
    report(
        "tokenizing",
        [
            Claim("tokenizing_mb_per_s", mb / seconds, 1.25, mb / theirs["seconds"], less_is_better=False),
            Claim("tokenizing_memory_mb", peak.mb["python"], 0.25, theirs["peak_mb"]),
            Claim("tokenizing_tokens_apart", abs(1 - (tokens or 0) / theirs["tokens"]), 0.001),
        ],
    )


if __name__ == "__main__":
    main()
