"""A document's way, read without Spark: by id, URL and path; each fate in its own words."""

from __future__ import annotations

import pytest

from bloomery.artifacts.run import MissingInputError
from spark_jobs.explain import UnknownDocumentError, explain, ids_of


def manifests(finished):
    return {name: outcome.digest for name, outcome in finished.outcomes.items()}


def test_a_survivors_way_ends_in_a_shard(finished):
    survivor = next(r for r in finished.rows("decontaminate") if r["status"] == "kept" and r["url"])
    for name in (survivor["id"], survivor["id"][:12], survivor["url"]):
        found = explain(finished.store, manifests(finished), name)
        steps = [step for step in found if step.document == survivor["id"]]
        assert [step.stage for step in steps] == [
            *("ingest", "measure", "clean", "dedup", "decontaminate", "shard")
        ]
        assert name == survivor["url"] or steps == found
    assert steps[-1].row["split"] == survivor["split"] and "position" in steps[-1].row
    assert len(steps[0].row["text"]) < 250 and "characters)" in steps[0].row["text"]


def test_a_duplicates_way_names_its_survivor(finished):
    duplicate = next(r for r in finished.rows("dedup") if r["rule"] == "dedup.near")
    steps = explain(finished.store, manifests(finished), duplicate["id"])
    assert [step.stage for step in steps] == ["ingest", "measure", "clean", "dedup"]
    assert steps[-1].row["duplicate_of"] == duplicate["duplicate_of"]
    survivor = next(r for r in finished.rows("ingest") if r["id"] == duplicate["duplicate_of"])
    assert steps[-1].row["survivor"] == ", ".join(
        filter(None, [f"{survivor['source']}/{survivor['path']}", survivor["url"]])
    )


def test_a_path_names_every_record_of_the_file(finished):
    steps = explain(finished.store, manifests(finished), "corpus/cut.jsonl.gz")
    broken = [s for s in steps if s.stage == "ingest" and s.row.get("rule") == "file.broken"]
    assert len(broken) == 1 and "cut short" in broken[0].row["detail"]
    dropped = [s for s in steps if s.row.get("status") == "dropped"]
    assert all({"rule", "value", "threshold"} <= set(s.row) for s in dropped)


def test_ids_of_a_name_are_told_from_any_later_manifest(finished):
    survivor = next(r for r in finished.rows("decontaminate") if r["status"] == "kept" and r["url"])
    for stage in ("ingest", "dedup", "shard"):
        for name in (survivor["url"], survivor["id"][:12]):
            assert survivor["id"] in ids_of(finished.store, manifests(finished)[stage], name)
    with pytest.raises(UnknownDocumentError, match="nowhere"):
        ids_of(finished.store, manifests(finished)["shard"], "nowhere")


def test_an_unknown_document_is_told(finished):
    with pytest.raises(UnknownDocumentError, match="nowhere"):
        explain(finished.store, manifests(finished), "nowhere")
    with pytest.raises(MissingInputError):
        explain(finished.store, {}, "nowhere")
