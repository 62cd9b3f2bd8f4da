"""The gate on a million records against Great Expectations alone on the same engine.

ours    two Spark jobs count a profile (40 histograms, samples, mixes and all), the suite judges it
peer    the same 15 checks as expectations on Spark Connect dataframes, nothing persisted

Both are warm, read the same Delta tables, and judge a sound snapshot and a corrupted one; each check must say
the same. `make bench-gates`
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
from bloomery.config.gates import CorpusGateConfig, Limits  # noqa: E402
from spark_jobs.engine import session  # noqa: E402
from spark_jobs.profiling import NUMERIC, CorpusProfile  # noqa: E402
from spark_jobs.statistics import LOOKS, MOJIBAKE  # noqa: E402
from spark_jobs.tables import Cell, Profile  # noqa: E402
from tests.words import WORDS  # noqa: E402
from validation.gates.corpus import SHORT, judge_profile  # noqa: E402

ROWS = 1_000_000
POLICY = CorpusGateConfig()
PHRASES = [" ".join(random.Random(place).choices(WORDS, k=6)) for place in range(64)]
PIECES = ", ".join(
    f"element_at(array({', '.join(map(repr, PHRASES))}), 1 + int(pmod(hash(n, {place}), 64)))"
    for place in range(8)
)
TEXT = f"concat_ws(' ', {PIECES}, n)"
"""Eight phrases, 250 characters or so, and a number that no other has."""


Expectation = tuple[str, str, dict[str, Any]]
"""Our check, and the expectation that says the same with its arguments."""


def _mostly(limit: Limits, **arguments: Any) -> dict[str, Any]:
    """Arguments of an expectation that as many rows may break as do not block."""
    return arguments | {"mostly": 1 - (limit.block or 0)}


def _holds_none(check: str, pattern: str, limit: Limits) -> Expectation:
    return check, "ExpectColumnValuesToNotMatchRegex", _mostly(limit, column="text", regex=pattern)


def _has_none(check: str, status: str, limit: Limits) -> Expectation:
    arguments = _mostly(limit, column="status", value_set=[status])
    return check, "ExpectColumnValuesToNotBeInSet", arguments


LENGTH, UNIQUE = "ExpectColumnValueLengthsToBeBetween", "ExpectColumnValuesToBeUnique"
NOT_NULL = "ExpectColumnValuesToNotBeNull"
PEER: dict[str, list[Expectation]] = {
    "survivors": [
        ("documents", "ExpectTableRowCountToBeBetween", {"min_value": POLICY.min_documents}),
        ("empty", NOT_NULL, {"column": "text"}),
        ("empty", LENGTH, {"column": "text", "min_value": 1}),
        ("repeated_ids", NOT_NULL, {"column": "id"}),
        ("repeated_ids", UNIQUE, {"column": "id"}),
        ("repeated", UNIQUE, _mostly(POLICY.repeated, column="text")),
        ("short", LENGTH, _mostly(POLICY.short, column="text", min_value=SHORT)),
        _holds_none("mojibake", MOJIBAKE, POLICY.mojibake),
        *(_holds_none("pii", LOOKS[kind], POLICY.pii) for kind in ("email", "ip", "phone", "credit_card")),
    ],
    "records": [
        _has_none("quarantined", "quarantined", POLICY.quarantined),
        _has_none("dropped", "dropped", POLICY.dropped),
        ("no_language", NOT_NULL, _mostly(POLICY.no_language, column="language")),
    ],
}


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
    signals = [f"double((n * {2 * place + 1}) % 997) / 100 AS {name}" for place, name in enumerate(NUMERIC)]
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
    os.environ |= {
        "SPARK_REMOTE": url,
        "SPARK_CONNECT_MODE_ENABLED": "1",
    }  # else it starts a Spark of its own
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from pyspark.sql.connect.session import SparkSession

    spark = SparkSession(f"{url}/", userId="benchmark")

    def table(stage: str, output: str) -> Any:
        return spark.read.format("delta").load(artifact(bench.store, bench.done[stage], output).spark_uri)

    fates, measured = table("ledger", "ledger"), table("measure", "documents").select("id", "language")
    began = time.monotonic()
    frames = {"survivors": table("decontaminate", "documents"), "records": fates.join(measured, "id")}
    said: dict[str, bool] = {}
    for name, expectations in PEER.items():
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        source = context.data_sources.add_spark(name, persist=False)
        asset = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        batch = asset.get_batch(batch_parameters={"dataframe": frames[name]})
        suite = gx.ExpectationSuite(name=name)
        for number, (check, kind, arguments) in enumerate(expectations):
            meta = {"check": check, "number": number}
            suite.add_expectation(getattr(gx.expectations, kind)(**arguments, meta=meta))
        for result in batch.validate(suite).results:
            check = result.expectation_config.meta["check"]
            infos = [result.exception_info, *result.exception_info.values()]
            assert not any(isinstance(i, dict) and i.get("raised_exception") for i in infos), infos
            said[check] = said.get(check, True) and bool(result.success)
    seconds = time.monotonic() - began
    # Its own session, too: one that outlives the engine asks for it at exit, for ten minutes.
    for session_ in (source.get_execution_engine().spark, spark):
        session_.stop()
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
