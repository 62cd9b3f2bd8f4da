"""MinHash deduplication end to end against datatrove's, on the same texts, the same run, two cores, a warm
engine.

    docs-corpus and perturbed copies (115 MB) -> signatures -> pairs -> dedup -> survivors' texts

Quality is judged on a sample by exact Jaccard of word 5-grams (lower case, runs of letters, digits and
underscores), by brute force: recall is the share of pairs at or above 0.7 of which not both are kept,
precision the share of removed documents that have such a partner anywhere in the corpus.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks import corpora  # noqa: E402
from benchmarks.claims import Claim, report  # noqa: E402
from benchmarks.peers import DATATROVE, run_peer  # noqa: E402
from benchmarks.warm import Bench, warm  # noqa: E402
from spark_jobs.minhash import jaccard, shingles  # noqa: E402

MEGABYTES = 115
SAMPLE = 300
THRESHOLD = 0.7
OURS = ("signatures", "pairs", "dedup", "decontaminate")


def main() -> None:
    """Prints the claims."""
    with tempfile.TemporaryDirectory(prefix="bloomery-dedup-") as name:
        folder = Path(name, "texts")
        count, size = corpora.write(folder, corpora.perturbed(MEGABYTES))
        print(f"{count} documents, {size / 1e6:.0f} MB", file=sys.stderr)
        ours, kept = _ours(folder)
        print(f"ours: {ours:.1f} s", file=sys.stderr)
        theirs_seconds = run_peer(
            "datatrove", DATATROVE, "datatrove_minhash.py", str(folder), f"{name}/peer"
        )["seconds"]
        theirs = set(Path(name, "peer", "kept.txt").read_text().splitlines())
        print(f"kept: {len(kept)} by ours, {len(theirs)} by the peer", file=sys.stderr)
        quality = [_quality(folder, found) for found in (kept, theirs)]
    mb = size / 1e6
    claims = [
        Claim("dedup_mb_per_s", mb / ours, 7, mb / theirs_seconds, less_is_better=False),
        Claim("dedup_recall", quality[0][0], 1, quality[1][0], less_is_better=False),
        Claim("dedup_precision", quality[0][1], 1, quality[1][1], less_is_better=False),
    ]
    report("dedup", claims)


def _ours(folder: Path) -> tuple[float, set[str]]:
    with warm() as bench:
        warming = folder.parent / "warming"
        corpora.write(warming, (row for row in corpora.perturbed(2)))
        _run(bench, warming)
        _run(bench, folder)
        return sum(bench.seconds[stage] for stage in OURS), _kept(bench)


def _run(bench: Bench, folder: Path) -> None:
    bench.texts(folder)
    bench.done["snapshot"] = bench.no_evals()
    for stage in OURS:
        bench.run(stage)


def _kept(bench: Bench) -> set[str]:
    from bloomery.artifacts.run import artifact
    from spark_jobs.explain import read_rows

    rows = read_rows(artifact(bench.store, bench.done["dedup"], "documents"), bench.folder / "cache")
    return {row["id"] for row in rows if row["status"] == "kept"}


def _quality(folder: Path, kept: set[str]) -> tuple[float, float]:
    """(recall, precision) on a sample of originals with all of their copies."""
    sets = _shingles(folder)
    originals = sorted({name.split("-")[1] for name in sets})
    chosen = set(random.Random(1).sample(originals, SAMPLE))
    sample = {name: found for name, found in sets.items() if name.split("-")[1] in chosen}
    true = [(a, b) for a, b in _pairs(sample) if jaccard(sample[a], sample[b]) >= THRESHOLD]
    recall = sum(not (a in kept and b in kept) for a, b in true) / len(true)
    removed = {name: found for name, found in sample.items() if name not in kept}
    right = _with_partner(removed, sets)
    print(f"sample: {len(sample)} documents, {len(true)} pairs, {len(removed)} removed", file=sys.stderr)
    return recall, len(right) / len(removed)


def _pairs(sample: dict[str, npt.NDArray[np.uint32]]) -> Iterable[tuple[str, str]]:
    """Pairs that share a shingle: all others have Jaccard 0."""
    holders: dict[int, list[str]] = {}
    for name, found in sample.items():
        for shingle in found.tolist():
            holders.setdefault(shingle, []).append(name)
    return {pair for names in holders.values() for pair in combinations(sorted(names), 2)}


def _with_partner(
    removed: dict[str, npt.NDArray[np.uint32]], sets: dict[str, npt.NDArray[np.uint32]]
) -> set[str]:
    """Those of `removed` that have a Jaccard of THRESHOLD or more with any other document."""
    names = sorted(removed)
    owner = np.concatenate([np.full(len(removed[name]), number) for number, name in enumerate(names)])
    held = np.concatenate([removed[name] for name in names])
    order = np.argsort(held, kind="stable")
    held, owner = held[order], owner[order]
    sizes = np.array([len(removed[name]) for name in names])
    right: set[str] = set()
    for other, found in sets.items():
        first, last = np.searchsorted(held, found, "left"), np.searchsorted(held, found, "right")
        places = np.concatenate(
            [np.arange(a, b) for a, b in zip(first, last, strict=True) if b > a] or [first[:0]]
        )
        both = np.bincount(owner[places], minlength=len(names))
        close = both / (sizes + len(found) - both) >= THRESHOLD
        right |= {names[number] for number in np.flatnonzero(close) if names[number] != other}
    return right


def _shingles(folder: Path) -> dict[str, npt.NDArray[np.uint32]]:
    import json

    return {
        row["id"]: shingles(row["text"], 5)
        for path in sorted(folder.glob("*.jsonl"))
        for row in map(json.loads, path.open(encoding="utf-8"))
    }


if __name__ == "__main__":
    main()
