"""Snapshots that grow: what an earlier one brought are hits, and the end is that of a run from scratch."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bloomery.artifacts.manifest import read_manifest
from bloomery.artifacts.refs import move_ref
from bloomery.artifacts.run import artifact, invalidate
from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore
from bloomery.config.corpus import DedupConfig
from bloomery.config.sources import SnapshotConfig, Source
from spark_jobs.components import components, forest
from spark_jobs.engine import session
from spark_jobs.parts import read_parts
from tests.spark_jobs.conftest import Pipeline
from tests.spark_jobs.corpus import prose

WAY = ("ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate", "ledger")


def write(folder: Path, name: str, numbers: list[int], ending: str = "") -> None:
    rows = [
        {"id": f"{name}-{n}", "url": f"https://example.org/{n}", "text": prose(n) + ending} for n in numbers
    ]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, spark_engine: Any) -> Pipeline:
    """Three snapshots: a corpus, then more files, then one changed and one removed."""
    folder = tmp_path_factory.mktemp("grown")
    (folder / "corpus").mkdir()
    pipeline = Pipeline(LocalStore(folder / "store"), folder / "corpus", spark_engine.execution)
    pipeline.about = {"name": "grown"}
    write(pipeline.corpus, "b.jsonl", list(range(30)))
    write(pipeline.corpus, "c.jsonl", list(range(20, 40)), " And that was the end of it.")
    pipeline.run(*WAY)
    pipeline.first = {name: outcome.digest for name, outcome in pipeline.outcomes.items()}
    write(pipeline.corpus, "a.jsonl", list(range(10, 50, 2)))
    pipeline.run(*WAY)
    pipeline.second = {name: outcome.digest for name, outcome in pipeline.outcomes.items()}
    write(pipeline.corpus, "b.jsonl", list(range(5, 35)), " Nobody asked why.")
    (pipeline.corpus / "c.jsonl").unlink()
    pipeline.run(*WAY)
    return pipeline


def test_a_grown_snapshot_ends_as_one_from_scratch(grown, spark_engine, tmp_path):
    parts = read_parts(artifact(grown.store, grown.outcomes["snapshot"].digest, "files"))
    assert len(parts) == 2  # nothing of the first is left
    assert sum("in the snapshot before" in line for line in grown.said) == 2
    scratch = Pipeline(LocalStore(tmp_path / "other"), grown.corpus, spark_engine.execution)
    scratch.run(*WAY)
    assert len(read_parts(artifact(scratch.store, scratch.outcomes["snapshot"].digest, "files"))) == 1
    for name in WAY:
        found, expected = (p.outcomes[name].manifest.outputs for p in (grown, scratch))
        assert found == expected, name


def test_parts_of_before_are_hits_and_old_snapshots_stay(grown):
    made = [line for line in grown.said if line.startswith("part ")]
    assert any("done already" in line for line in made) and any(line.endswith(": made") for line in made)
    for digests in (grown.first, grown.second):
        for name in WAY:
            output = "pairs" if name == "pairs" else "ledger" if name == "ledger" else "documents"
            assert artifact(grown.store, digests[name], output)
    fates = [
        {row["external_id"]: row for row in grown.rows_of(digests["ledger"], "ledger")}
        for digests in (grown.first, grown.second)
    ]
    unseated = [
        name
        for name, row in fates[0].items()
        if (row["status"], fates[1][name]["status"]) == ("kept", "duplicate")
    ]
    assert unseated, "a new document unseats an earlier survivor, and the new ledger says so"
    for name in unseated:
        survivor = next(r for r in fates[1].values() if r["id"] == fates[1][name]["duplicate_of"])
        assert survivor["status"] == "kept"


def test_pairs_that_start_from_any_snapshot_are_those_from_scratch(pipeline, tmp_path):
    """Whatever came and went between the two: parts, files of a part, one of two holders of a content."""
    draw, way = random.Random(3), WAY[: WAY.index("pairs")]
    for name in "abcdefg":
        rows = [{"text": f"{prose(draw.randrange(3))} Take {draw.randrange(30)}."} for _ in range(9)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    states, without = [], []
    for names in ("abcdef", "cdef", "bcdefg"):
        for file in pipeline.corpus.iterdir():
            file.unlink()
        for name in names:
            (pipeline.corpus / f"{name}.jsonl").hardlink_to(tmp_path / name)
        pipeline.run(*way)
        states.append(dict(pipeline.outcomes))
        parts = read_parts(artifact(pipeline.store, pipeline.outcomes["signatures"].digest, "documents"))
        without.append([len(part.without) for part in parts])
    assert without == [[0], [2], [2, 0]]

    def pairs(state: dict[str, Any], about: dict[str, str]) -> Any:
        pipeline.about, pipeline.outcomes = about, state
        return pipeline.stage("pairs").manifest

    scratch = []
    for state in states:
        scratch.append(pairs(state, {}))
        invalidate(pipeline.store, scratch[-1].spec.key, "to make it from others")
    assert len({manifest.outputs["pairs"].digest for manifest in scratch}) == 3
    for start, others in ((start, [other for other in states if other is not start]) for start in states):
        key = pairs(start, {}).spec.key
        name = f"from-{key}"
        move_ref(pipeline.store, f"pairs/{name}", {"digest": pipeline.outcomes["pairs"].digest}, None)
        for state in others:
            made = pairs(state, {"name": name})
            assert made.outputs == scratch[states.index(state)].outputs
            invalidate(pipeline.store, made.spec.key, "to make it from others")
        invalidate(pipeline.store, key, "to make it from others")
    assert sum("in the snapshot before" in line for line in pipeline.said) == 6


def test_a_part_that_is_gone_is_made_again(grown):
    (part, *_) = read_parts(artifact(grown.store, grown.outcomes["clean"].digest, "documents"))
    before = {name: grown.outcomes[name].digest for name in WAY}
    invalidate(grown.store, read_manifest(grown.store, part.manifest).spec.key, "test")
    grown.run(*WAY)
    assert {name: grown.outcomes[name].digest for name in WAY} == before


def test_preferred_sources_survive(pipeline):
    """Whatever the contents, the better source wins; contents decide only where sources are alike."""
    for name in ("one", "two"):
        (pipeline.corpus / name).mkdir()
    write(pipeline.corpus / "one", "a.jsonl", list(range(12)))
    write(pipeline.corpus / "two", "b.jsonl", list(range(12)), " And more.")
    sources = tuple(Source(name=name, uri=str(pipeline.corpus / name)) for name in ("one", "two"))
    pipeline.snapshot = SnapshotConfig(sources=sources)
    way = ("ingest", "measure", "clean", "signatures", "pairs", "dedup")
    survivors = {}
    for prefer in ((), ("one",), ("two", "one")):
        pipeline.run(*way, configs={"dedup": DedupConfig(prefer=prefer)})
        survivors[prefer] = [row["source"] for row in pipeline.rows("dedup") if row["status"] == "kept"]
    assert survivors["one",] == ["one"] * 12 and survivors["two", "one"] == ["two"] * 12
    assert sorted(set(survivors[()])) == ["one", "two"] and len(survivors[()]) == 12


def test_one_url_is_one_document(pipeline):
    write(pipeline.corpus, "a.jsonl", list(range(12)))
    rows = [{"url": f"https://example.org/{n % 12}", "text": prose(n + 100)} for n in range(24)]
    (pipeline.corpus / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = {"dedup": DedupConfig(url=True)}
    pipeline.run(
        "ingest",
        "measure",
        "clean",
        "signatures",
        "pairs",
        "dedup",
        "decontaminate",
        "ledger",
        configs=chosen,
    )
    rows = {row["id"]: row for row in pipeline.rows("ledger", "ledger")}
    assert sum(row["status"] == "kept" for row in rows.values()) == 12
    for row in rows.values():
        if row["rule"] == "dedup.url":
            assert rows[row["duplicate_of"]]["url"] == row["url"] and row["jaccard"] is None


@pytest.mark.parametrize("shape, tasks", [("path", 5), ("star", 3), ("random", 7), ("random", 1)])
def test_components_of_any_shape(shape, tasks, spark_engine, tmp_path):
    """Against union-find on the whole graph; a long path is what rounds find hardest."""
    draw = random.Random(shape)
    names = [f"{draw.getrandbits(64):016x}" for _ in range(400)]
    edges = {
        "path": list(pairwise(names)),
        "star": [(names[0], other) for other in names[1:]],
        "random": [tuple(draw.sample(names, 2)) for _ in range(350)],
    }[shape]
    context = Context(
        None, {}, spark_engine.execution(5), LocalStore(tmp_path), shape, "data/x/y", 1, {}, {}, tmp_path
    )
    with session(context) as spark:
        frame = spark.createDataFrame(
            [tuple(sorted(edge)) for edge in edges], "a string, b string"
        ).repartition(5)
        found = {row["node"]: row["least"] for row in components(spark, context, frame, tasks).collect()}
    assert found == forest(edges)
