"""A snapshot of 100 MB, then 5 % of new documents: what the second costs, against a run from scratch.

    python benchmarks/incremental.py [MB]

Both on one engine, which a small snapshot that grows, too, has warmed; a stage's cost is CPU seconds of the
engine, its Python workers and the driver. The survivors must be the same.
`make bench-incremental`
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
from benchmarks.warm import PLANE, Bench, warm  # noqa: E402

SHARE = 0.05
STAGES = PLANE[: PLANE.index("decontaminate") + 1]
TEXTS = ("ingest", "measure", "clean")
DEDUP = tuple(stage for stage in STAGES if stage not in (*TEXTS, "decontaminate"))


def main(megabytes: float = 100) -> None:
    """Runs the snapshot, the grown one, and that from scratch."""
    with tempfile.TemporaryDirectory(prefix="bloomery-incremental-") as name, warm() as bench:
        folder = Path(name, "texts")
        grow(bench, Path(name, "warming"), 2)
        grow(bench, folder, megabytes)
        scratch = Bench(Path(name, "scratch"), bench.execution, bench.engine)
        run(scratch, folder)
        same = digest(bench) == digest(scratch)
    print(f"{'CPU-s':<16}{'grown':>8}{'scratch':>8}")
    for stage in STAGES:
        print(f"{stage:<16}{bench.cpu[stage]:>8.1f}{scratch.cpu[stage]:>8.1f}")
    print(f"load {os.getloadavg()[0]:.1f}; the survivors are {'the same' if same else 'OTHERS'}")
    report(
        "incremental",
        [
            Claim("incremental_dedup_cpu_s", total(bench, DEDUP), 0.35, total(scratch, DEDUP)),
            Claim("incremental_cpu_s", total(bench, STAGES), 0.35, total(scratch, STAGES)),
            Claim("incremental_texts_cpu_s", total(bench, TEXTS), 0.15, total(scratch, TEXTS)),
            Claim("incremental_same_survivors", float(same), 1, less_is_better=False),
        ],
    )


def grow(bench: Bench, folder: Path, megabytes: float) -> None:
    """Every stage on a new folder, then on the same with SHARE more of documents."""
    rows = corpora.perturbed(megabytes * (1 + SHARE))
    corpora.write(folder, corpora.up_to(rows, megabytes), gz=True)
    run(bench, folder)
    corpora.write(folder / "new", rows, gz=True)
    run(bench, folder)


def run(bench: Bench, folder: Path) -> None:
    """Every stage on a folder as it is now."""
    bench.take(folder)
    for stage in STAGES:
        bench.run(stage)


def digest(bench: Bench) -> str:
    """Content digest of the survivors."""
    return bench.outcomes["decontaminate"].manifest.outputs["documents"].digest


def total(bench: Bench, stages: tuple[str, ...]) -> float:
    """CPU seconds of some stages."""
    return sum(bench.cpu[stage] for stage in stages)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
