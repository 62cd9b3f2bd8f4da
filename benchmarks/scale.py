"""The whole data plane at two sizes: MB/s per core, what a MB costs, and the memory of every process.

    docs-corpus and perturbed copies (jsonl.gz) -> snapshot -> ingest -> ... -> shard; no gates, warm engine

    python benchmarks/scale.py [SMALL LARGE]      MB of text; 100 and 1000 if not given

A stage's cost is CPU seconds of the engine, of its Python workers and of the driver (this process). The
driver's memory is that of an idle one and what the largest stage adds, as each stage is a process of its own;
what training a tokenizer adds is the mean of several samples.
`make bench-scale`
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from pyarrow import dataset

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks import corpora  # noqa: E402
from benchmarks.claims import Claim, report  # noqa: E402
from benchmarks.memory import Peak  # noqa: E402
from benchmarks.warm import PLANE, Bench, warm  # noqa: E402
from bloomery.artifacts.manifest import Artifact  # noqa: E402
from bloomery.artifacts.run import artifact  # noqa: E402
from bloomery.config.corpus import TokenizerConfig  # noqa: E402
from spark_jobs.tables import logged_files  # noqa: E402
from spark_jobs.tokenizer import train  # noqa: E402

CORES = 2
HEAP = "2g"
"""As `bloomery up` gives the engine."""
WARMING = 2.0
SAMPLE = 4 << 20
"""Bytes of text that a tokenizer is trained on, in the driver: as many at every size."""
SAMPLES = 8
"""Samples to train on: which texts are in one moves the trainer's memory by half, at one size."""
CONFIGS = {"tokenizer": TokenizerConfig(sample_bytes=SAMPLE)}


def main(small: float = 100, large: float = 1000) -> None:
    """Runs both sizes on one engine and reports."""
    print(f"load {os.getloadavg()[0]:.1f}; {CORES} cores, heap of the engine {HEAP}")
    with tempfile.TemporaryDirectory(prefix="bloomery-scale-") as name, warm(HEAP) as bench:
        measure(bench, Path(name, "warming"), WARMING)
        idle = memory("VmRSS")
        first, second = (measure(bench, Path(name, f"{size:g}"), size) for size in (small, large))
    print(f"{'':<16}{'CPU-s per MB':>22}{'added to the driver, MB':>26}")
    print(f"{'':<16}{small:>8g} MB{large:>8g} MB{small:>12g} MB{large:>8g} MB")
    for stage in PLANE:
        costs = f"{first.cpu[stage]:>11.4f}{second.cpu[stage]:>11.4f}"
        print(f"{stage:<16}{costs}{first.tops[stage]:>15.0f}{second.tops[stage]:>11.0f}")
    report(
        "scale",
        [
            Claim("scale_cpu_seconds_per_mb", second.cpu["all"], 1.2, first.cpu["all"]),
            Claim("scale_seconds_per_mb", second.seconds, 1.2, first.seconds),
            Claim("scale_driver_mb", idle + second.driver, 1.1, idle + first.driver),
        ],
    )


class Run:
    """What a run costs.

    Args:
        bench: after the run.
        megabytes: of text.
        tops: stage -> what it adds to the driver's memory, MB.
    """

    def __init__(self, bench: Bench, megabytes: float, tops: dict[str, float]) -> None:
        self.cpu = {stage: bench.cpu[stage] / megabytes for stage in PLANE}
        """CPU seconds per MB, by stage and of "all"."""
        self.cpu["all"] = sum(self.cpu.values())
        self.seconds = sum(bench.seconds[stage] for stage in PLANE) / megabytes
        """Seconds per MB."""
        self.tops = tops
        """Stage -> what it adds to the driver's memory, MB."""
        self.driver = max(tops.values())
        """What the largest one adds, MB."""


def memory(kind: str) -> float:
    """Memory of this process, MB: VmRSS now, VmHWM at its peak (proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(kind))


def added(run: Callable[[], object]) -> float:
    """Memory that this process takes more while something runs, MB."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would hide it
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before


def trained(bench: Bench) -> float:
    """Memory that training a tokenizer adds, MB: the mean of several samples of the survivors."""
    documents = artifact(bench.store, bench.outcomes["decontaminate"].digest, "documents")
    vocabulary, tops = CONFIGS["tokenizer"].vocab_size, []
    for texts in samples(documents):
        tops.append(added(lambda texts=texts: train(texts, vocabulary)))
    print(f"  training adds {min(tops):.0f} to {max(tops):.0f} MB over {len(tops)} samples")
    return sum(tops) / len(tops)


def samples(documents: Artifact) -> Iterator[list[str]]:
    """Texts that are kept, SAMPLE bytes at a time, SAMPLES times at most; by id, which is a hash. What does
    not fill a sample is left out, unless it is the only one."""
    share = 1.01 * SAMPLE * SAMPLES / (documents.output.bytes or 1)
    last = f"{int(min(share, 1) * (16**8 - 1)):08x}"
    folder = documents.local(Path())  # the store's own
    wanted = (dataset.field("status") == "kept") & (dataset.field("id") < last)
    files = [f"{folder}/{file}" for file in logged_files(documents)[1]]
    rows = dataset.dataset(files).to_table(["id", "text"], filter=wanted).sort_by("id")
    texts, size, full = [], 0, False
    for text in rows["text"].to_pylist():
        texts.append(text)
        size += len(text.encode())
        if size >= SAMPLE:
            yield texts
            texts, size, full = [], 0, True
    if not full:
        yield texts


def write(folder: Path, megabytes: float) -> tuple[int, int]:
    """Writes the corpus."""
    return corpora.write(folder, corpora.perturbed(megabytes), files=8, gz=True)


def measure(bench: Bench, folder: Path, megabytes: float) -> Run:
    """Runs every stage on a corpus of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as other:  # its memory is not the driver's
        count, size = other.submit(write, folder, megabytes).result()
    with Peak(bench.engine) as peak:
        bench.take(folder)
        tops = {stage: added(lambda stage=stage: bench.run(stage, CONFIGS.get(stage))) for stage in PLANE}
    tops["tokenizer"] = trained(bench)
    run = Run(bench, size / 1e6, tops)
    print(f"{count} documents, {size / 1e6:.0f} MB: {1 / run.seconds / CORES:.2f} MB/s per core")
    largest = f"Python workers {peak.mb['python']:.0f}, JVM {peak.mb['java']:.0f}"
    print(f"  largest memory, MB: {largest}; load {os.getloadavg()[0]:.1f}", flush=True)
    return run


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
