"""The gate on a million records against Great Expectations alone on the same engine.

ours    two Spark jobs count a profile (all of it: 40 histograms, samples, mixes), the suite judges it
peer    the same 15 checks as expectations on Spark Connect dataframes, nothing persisted

Both are warm, read the same Delta tables, and judge a sound snapshot and a corrupted one; what each check says
must be the same. `make bench-gates`
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]  # the tests' engine, on free ports

from benchmarks.claims import Claim, report  # noqa: E402
from benchmarks.warm import Bench, warm  # noqa: E402
from bloomery.artifacts.digests import TableDigest  # noqa: E402
from bloomery.artifacts.manifest import Artifact, Output  # noqa: E402
from bloomery.artifacts.run import artifact  # noqa: E402
from bloomery.artifacts.stage import Context, Stage  # noqa: E402
from bloomery.config.base import Config  # noqa: E402
from bloomery.config.gates import CorpusGateConfig  # noqa: E402
from spark_jobs.engine import session  # noqa: E402
from spark_jobs.profiling import NUMERIC, CorpusProfile  # noqa: E402
from spark_jobs.statistics import LOOKS, MOJIBAKE  # noqa: E402
from spark_jobs.tables import Cell, Profile  # noqa: E402
from validation.gates.corpus import SHORT, judge_profile  # noqa: E402

ROWS = 1_000_000
POLICY = CorpusGateConfig()
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "with",
    "was",
    "on",
    "by",
    "this",
    "are",
    "from",
    "which",
    "one",
    "all",
    "there",
    "more",
    "will",
    "about",
    "into",
    "some",
    "than",
    "other",
    "time",
    "only",
    "may",
    "these",
    "furnace",
    "iron",
    "bloom",
    "ore",
    "charcoal",
    "slag",
    "hammer",
    "anvil",
    "smith",
    "bellows",
    "heat",
    "metal",
    "forge",
    "river",
    "stone",
    "valley",
    "winter",
    "bridge",
    "market",
    "village",
    "teacher",
    "letter",
    "story",
    "morning",
]
BASE = " ".join(random.Random(0).choices(WORDS, k=20_000))
TEXT = f"concat_ws(' ', substring('{BASE}', 1 + int(pmod(xxhash64(n), 100000)), 150 + int(pmod(hash(n), 200))), n)"
"""150 to 350 characters of words, and a number that no other has."""


class Made(Config):
    """A made-up snapshot."""

    rows: int
    corrupted: bool
    table: str = ""


def ledger(context: Context) -> Mapping[str, Artifact]:
    """Body: the ledger; a tenth of the records is dropped, one in 200 quarantined."""
    rows = context.config.rows
    fate = "CASE WHEN n % 10 = 1 THEN 'dropped' WHEN n % 200 = 2 THEN 'quarantined' ELSE 'kept' END"
    rule = "CASE WHEN n % 10 = 1 THEN 'gopher.words' WHEN n % 200 = 2 THEN 'encoding' END"
    columns = (
        "id",
        "source",
        f"{fate} AS status",
        f"{rule} AS rule",
        "IF(n % 20 = 0, 'held_out', 'train') AS split",
    )
    _write(context, "ledger", *columns)
    counts = {("dropped", "gopher.words"): rows // 10, ("quarantined", "encoding"): rows // 200}
    counts["kept", ""] = rows - sum(counts.values())
    cells = {
        ("bench", "clean", *fate): Cell(TableDigest(count), (count,))
        for fate, count in sorted(counts.items())
    }
    account = Profile(("source", "stage", "status", "rule"), ("length",), cells=cells)
    return {
        "ledger": context.artifact("ledger", Output(digest="ledger")),
        "profile": context.blob("profile", account.to_bytes()),
    }


def measure(context: Context) -> Mapping[str, Artifact]:
    """Body: what `measure` says, all signals among it; one record in 50 has no language."""
    signals = [
        f"double(pmod(xxhash64(n, {place}), 1000)) / 100 AS {name}" for place, name in enumerate(NUMERIC)
    ]
    about = (
        "IF(n % 3 = 0, NULL, concat('https://example.org/', n)) AS url",
        "'2024' AS date",
        "'mit' AS licence",
    )
    language = "IF(n % 150 = 0, NULL, IF(n % 20 = 0, 'de', 'en')) AS language"
    _write(context, "documents", "id", *about, language, *signals, f"{TEXT} AS text")
    return {"documents": context.artifact("documents", Output(digest="documents"))}


def decontaminate(context: Context) -> Mapping[str, Artifact]:
    """Body: the survivors; in a corrupted snapshot one text in 40 holds an address, one in 100 is a copy."""
    text, name = TEXT, "id"
    if context.config.corrupted:
        text = f"CASE WHEN n % 40 = 5 THEN concat({TEXT}, ' ada', n, '@example.org') "
        text += f"WHEN n % 100 = 7 THEN 'the same text again and again' ELSE {TEXT} END"
        name = "IF(n % 1000 = 9, '00000000000000000000000000000009', id) AS id"
    kept = "n % 10 <> 1 AND n % 200 <> 2"
    _write(context, "documents", name, "source", "'kept' AS status", f"{text} AS text", where=kept)
    return {"documents": context.artifact("documents", Output(digest=context.key))}


def evals(context: Context) -> Mapping[str, Artifact]:
    """Body: no eval items: Great Expectations has no check of them."""
    return {"evals": context.blob("evals", b"[]")}


def _write(context: Context, name: str, *columns: str, where: str = "true") -> None:
    with session(context) as spark:
        numbered = spark.range(context.config.rows, numPartitions=8).selectExpr(
            "id AS n", "substring(sha2(string(id), 256), 1, 32) AS id", "'bench' AS source"
        )
        uri = context.store.spark_uri(context.place(name))
        numbered.where(where).selectExpr(*columns).write.format("delta").save(uri)


def make(bench: Bench, rows: int, corrupted: bool) -> None:
    """Makes the tables that both read."""
    for stage in ("ledger", "measure", "decontaminate"):
        made = Made(rows=rows, corrupted=corrupted, table=stage)
        bench.run(Stage(stage, 0, Made, body=f"benchmarks.gates:{stage}"), made)
    bench.run(Stage("snapshot", 0, Made, body="benchmarks.gates:evals"), Made(rows=rows, corrupted=corrupted))


def ours(bench: Bench) -> tuple[float, dict[str, bool]]:
    """Seconds of the profile and its judgement, and what each check says."""
    began = time.monotonic()
    outcome = bench.run("profile")
    profile = CorpusProfile.from_bytes(artifact(bench.store, outcome.digest, "profile").read())
    judgements = judge_profile(profile, None, POLICY)
    said: dict[str, bool] = {}
    for judgement in judgements:
        if judgement.check.severity == "critical":
            said[judgement.check.column] = judgement.passed
    return time.monotonic() - began, said


def theirs(bench: Bench, url: str) -> tuple[float, dict[str, bool]]:
    """The same of Great Expectations."""
    os.environ |= {"SPARK_REMOTE": url, "SPARK_CONNECT_MODE_ENABLED": "1"}  # else it starts a Spark of its own
    import great_expectations as gx
    import great_expectations.expectations as e
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from pyspark.sql.connect.session import SparkSession

    spark = SparkSession(f"{url}/", userId="benchmark")

    def table(stage: str, output: str) -> Any:
        return spark.read.format("delta").load(artifact(bench.store, bench.done[stage], output).spark_uri)

    def of(limit: Any) -> float:
        return 1 - limit.block

    fates, measured = table("ledger", "ledger"), table("measure", "documents").select("id", "language")
    suites = {
        "survivors": [
            (e.ExpectTableRowCountToBeBetween(min_value=POLICY.min_documents), "documents"),
            (e.ExpectColumnValuesToNotBeNull(column="text"), "empty"),
            (e.ExpectColumnValueLengthsToBeBetween(column="text", min_value=1), "empty"),
            (e.ExpectColumnValuesToNotBeNull(column="id"), "repeated_ids"),
            (e.ExpectColumnValuesToBeUnique(column="id"), "repeated_ids"),
            (e.ExpectColumnValuesToBeUnique(column="text", mostly=of(POLICY.repeated)), "repeated"),
            (e.ExpectColumnValueLengthsToBeBetween(column="text", min_value=SHORT, mostly=of(POLICY.short)), "short"),
            (e.ExpectColumnValuesToNotMatchRegex(column="text", regex=MOJIBAKE, mostly=of(POLICY.mojibake)), "mojibake"),
            *((e.ExpectColumnValuesToNotMatchRegex(column="text", regex=LOOKS[kind], mostly=of(POLICY.pii)), "pii") for kind in ("email", "ip", "phone", "credit_card")),
        ],
        "records": [
            (e.ExpectColumnValuesToNotBeInSet(column="status", value_set=["quarantined"], mostly=of(POLICY.quarantined)), "quarantined"),
            (e.ExpectColumnValuesToNotBeInSet(column="status", value_set=["dropped"], mostly=of(POLICY.dropped)), "dropped"),
            (e.ExpectColumnValuesToNotBeNull(column="language", mostly=of(POLICY.no_language)), "no_language"),
        ],
    }  # fmt: skip
    began = time.monotonic()
    frames = {"survivors": table("decontaminate", "documents"), "records": fates.join(measured, "id")}
    said: dict[str, bool] = {}
    for name, expectations in suites.items():
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        source = context.data_sources.add_spark(name, persist=False)
        asset = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        batch = asset.get_batch(batch_parameters={"dataframe": frames[name]})
        suite = gx.ExpectationSuite(name=name)
        for number, (expectation, check) in enumerate(expectations):
            expectation.meta = {"check": check, "number": number}
            suite.add_expectation(expectation)
        for result in batch.validate(suite).results:
            check = result.expectation_config.meta["check"]
            infos = [result.exception_info, *result.exception_info.values()]
            assert not any(isinstance(i, dict) and i.get("raised_exception") for i in infos), infos
            said[check] = said.get(check, True) and bool(result.success)
    seconds = time.monotonic() - began
    spark.client.close()
    return seconds, said


def main() -> None:
    """Measures both and reports."""
    rows = int(os.environ.get("ROWS", ROWS))
    figures: dict[bool, tuple[float, float]] = {}
    same = True
    with warm() as bench:
        url = bench.execution.spark.remote or ""
        for number, (size, corrupted) in enumerate(((20_000, False), (rows, False), (rows, True))):
            make(bench, size, corrupted)
            load = os.getloadavg()[0]
            mine, said = ours(bench)
            peer, expected = theirs(bench, url)
            print(f"{size} rows{', corrupted' * corrupted}: {mine:.1f} s, peer {peer:.1f} s, load {load:.1f}")
            print(f"  ours {json.dumps(said)}\n  peer {json.dumps(expected)}")
            if number:
                figures[corrupted] = mine, peer
                same &= {name: said[name] for name in expected} == expected
    mine, peer = (sum(pair[side] for pair in figures.values()) / len(figures) for side in (0, 1))
    report(
        "gates",
        [
            Claim("gates_seconds", mine, 1 / 3, peer),
            Claim("gates_same_verdicts", float(same), 1.0, less_is_better=False),
        ],
    )


if __name__ == "__main__":
    main()
