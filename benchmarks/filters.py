"""The filter chain of FineWeb (Gopher repetition, Gopher quality, C4, FineWeb) against datatrove's.

Both read the same JSON lines (gzip) on two cores, judge every document and write texts and reasons. The
corpus is halved by a hash of the ids: ours first reads one half, which loads spaCy and the commonest words
into the workers (printed as "cold", without a goal), then the other, which it has never seen. That one is
timed, and on it datatrove, less what it takes to start: the seconds of the same pipeline on one document.
Each does so thrice, in turns, ours with a new engine; the least seconds count: other load only adds. Prints
MB/s of both, the ratio, and the fraction of documents with the same decision, reason and text.

Both do the filter chain alone: no repair of encodings, no language, no personal data, no rules of other
papers. Ours measures every rule of the chain, where datatrove stops at the first that drops a text.
`make bench-filters`
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # the tests' engine, on free ports

from benchmarks import corpora  # noqa: E402
from benchmarks.claims import Claim, report  # noqa: E402
from benchmarks.memory import cpu_seconds  # noqa: E402
from benchmarks.peers import DATATROVE, run_peer  # noqa: E402
from bloomery.config.cleaning import CleanConfig, MeasureConfig  # noqa: E402
from spark_jobs.cleaning import lines, words  # noqa: E402
from spark_jobs.cleaning.rules import RULES, Text, count_repeats, measure  # noqa: E402
from spark_jobs.cleaning.signals import SIGNALS, column, lexicon  # noqa: E402
from spark_jobs.cleaning.verdicts import verdict  # noqa: E402
from spark_jobs.tables import record_batch  # noqa: E402
from tests.conftest import running_engine  # noqa: E402

MEASURE = MeasureConfig(profile="datatrove-0.10.1", lines=("c4",))
CLEAN = CleanConfig(chain=("gopher_repetition", "gopher", "c4", "fineweb"))
NAMES = [name for name in SIGNALS if name in RULES and name.partition(".")[0] in CLEAN.chain]
TURNS = 3
SCHEMA = ", ".join(["id string, text string", *(f"{column(name)} double" for name in NAMES)])
REASONS = {
    "gopher_short_doc": "gopher.words",
    "gopher_long_doc": "gopher.words",
    "gopher_below_avg_threshold": "gopher.mean_word_length",
    "gopher_above_avg_threshold": "gopher.mean_word_length",
    "gopher_too_many_hashes": "gopher.hash_ratio",
    "gopher_too_many_ellipsis": "gopher.ellipsis_ratio",
    "gopher_too_many_bullets": "gopher.bullet_lines",
    "gopher_too_many_end_ellipsis": "gopher.ellipsis_lines",
    "gopher_below_alpha_threshold": "gopher.alpha_words",
    "gopher_enough_stop_words": "gopher.stop_words",
    "dup_para_frac": "gopher_repetition.duplicate_paragraphs",
    "dup_para_char_frac": "gopher_repetition.duplicate_paragraph_characters",
    "dup_line_frac": "gopher_repetition.duplicate_lines",
    "dup_line_char_frac": "gopher_repetition.duplicate_line_characters",
    **{f"top_{size}_gram": f"gopher_repetition.top_{size}_gram" for size in (2, 3, 4)},
    **{f"duplicated_{n}_n_grams": f"gopher_repetition.duplicate_{n}_grams" for n in range(5, 11)},
    "lorem_ipsum": "c4.lorem_ipsum",
    "curly_bracket": "c4.curly_brackets",
    "too_few_sentences": "c4.sentences",
    "line_punct_ratio": "fineweb.terminal_lines",
    "short_line_ratio": "fineweb.short_lines",
    "char_dup_ratio": "fineweb.duplicate_line_characters",
    "list_ratio": "fineweb.newline_ratio",
}
"""datatrove's reasons -> our rules."""

Decisions = dict[str, tuple[str | None, str | None]]
"""Document -> (rule that dropped it or None, text of a kept one)."""


def theirs(corpus: Path, folder: Path) -> tuple[float, Decisions]:
    """Seconds and decisions of datatrove."""
    seconds = run_peer("datatrove", DATATROVE, "datatrove_filters.py", str(corpus), str(folder))["seconds"]
    found: Decisions = {}
    for path in folder.rglob("*.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for row in map(json.loads, file):
                reason = row["metadata"].get("filter_reason")
                found[row["id"]] = (REASONS[reason], None) if reason else (None, row["text"])
    return seconds, found


def ours(corpus: Path, folder: Path, spark: Any) -> tuple[float, Decisions]:
    """Seconds and decisions of the rules in a session."""
    began = time.monotonic()
    read = spark.read.schema("id string, text string").json(str(corpus / "*.jsonl.gz"))
    measured = read.mapInArrow(partial(_measure, MEASURE), SCHEMA)
    judged = measured.selectExpr("id", "text", f"({verdict(CLEAN)}) AS verdict")
    kept = "CASE WHEN verdict IS NULL THEN text END AS text"
    judged.selectExpr("id", "verdict.*", kept).write.format("delta").save(str(folder))
    seconds = time.monotonic() - began
    rows = spark.read.format("delta").load(str(folder)).collect()
    return seconds, {row["id"]: (row["rule"], row["text"]) for row in rows}


def _measure(config: MeasureConfig, batches: Iterator[Any]) -> Iterator[Any]:
    every = (row for batch in batches for row in batch.to_pylist())
    for documents in words.batches(every, lambda row: len(row["text"])):
        texts = [Text(row["text"], lexicon(config.profile), config.c4_lines) for row in documents]
        count_repeats(texts)
        rows = []
        for row, before in zip(documents, texts, strict=True):
            after = lines.edit(before, config.lines)
            found = measure(before, after, config.profile, NAMES)
            signals = (None if math.isnan(found[name]) else found[name] for name in NAMES)
            rows.append((row["id"], after.text, *signals))
        yield record_batch(rows, SCHEMA)


def agreement(one: Decisions, other: Decisions) -> float:
    """Fraction of documents with the same decision, reason and text."""
    return sum(one.get(name) == other.get(name) for name in one.keys() | other.keys()) / len(one)


def half(row: dict[str, str]) -> int:
    """0 or 1, by a hash of the id."""
    return sha256(row["id"].encode()).digest()[0] & 1


def ours_unseen(folder: Path, turn: int) -> tuple[float, Decisions]:
    """Seconds and decisions of the second half on a new engine that has seen the first."""
    from pyspark.sql.connect.session import SparkSession

    with tempfile.TemporaryDirectory() as name, running_engine(Path(name)) as engine:
        spark = SparkSession(f"{engine.url}/", userId="benchmark")
        pid = engine.process.pid
        cold, _ = ours(folder / "half-0", folder / f"cold-{turn}", spark)
        start, _ = ours(folder / "one", folder / f"query-{turn}", spark)
        cpu = cpu_seconds(pid)
        warm, found = ours(folder / "half-1", folder / f"warm-{turn}", spark)
        cpu = cpu_seconds(pid) - cpu
        spark.client.close()
    took = f"{warm:.1f} s ({cpu:.1f} CPU-s), of which {start:.1f} s for a query of one document"
    print(f"ours: cold {cold:.1f} s, then {took}; load {load()}", flush=True)
    return warm, found


def theirs_unseen(folder: Path, turn: int) -> tuple[float, Decisions]:
    """Seconds and decisions of datatrove on the second half, once it has started."""
    start, _ = theirs(folder / "one", folder / f"start-{turn}")
    whole, found = theirs(folder / "half-1", folder / f"datatrove-{turn}")
    print(f"datatrove: {whole:.1f} s, of which {start:.1f} s to start; load {load()}")
    return whole - start, found


def main() -> None:
    """Measures both and reports."""
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), list(corpora.documents())
        halves = [
            corpora.write(folder / f"half-{number}", (row for row in rows if half(row) == number), gz=True)
            for number in (0, 1)
        ]
        corpora.write(folder / "one", iter(rows[:1]), gz=True)
        print("; ".join(f"{count} documents, {size / 1e6:.1f} MB" for count, size in halves))
        turns = [(ours_unseen(folder, turn), theirs_unseen(folder, turn)) for turn in range(TURNS)]
    mb = halves[1][1] / 1e6
    warm, peer = (min(seconds for seconds, _ in side) for side in zip(*turns, strict=True))
    same = min(agreement(expected, found) for (_, found), (_, expected) in turns)
    report(
        "filters",
        [
            Claim("filters_mb_per_s", mb / warm, 5, mb / peer, less_is_better=False),
            Claim("filters_same_decision", same, 0.999, less_is_better=False),
        ],
    )


def load() -> str:
    """The machine's load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
