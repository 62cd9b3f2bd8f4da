"""The whole way on the fixed corpus: each record's fate, the balance, bytes that no partitioning changes."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.run import artifact, invalidate
from bloomery.shards.dataset import Dataset, check_dataset, shard_files
from bloomery.shards.write import Document, write_dataset
from spark_jobs.parts import SUFFIX
from spark_jobs.stages import STAGES
from spark_jobs.tokenizer import load
from tests.spark_jobs.conftest import ORDER
from tests.spark_jobs.corpus import prose

GOLDEN = Path(__file__).parent / "golden.json"


def test_golden_digests(finished):
    """A stage whose output changes has its version raised; BLOOMERY_FREEZE=1 then freezes the new one."""
    found = {
        name: {
            "version": STAGES[name].version,
            # A listing holds the files' times, which no two runs share.
            "inputs": {k: v for k, v in finished.outcomes[name].manifest.spec.inputs.items() if k != "files"},
            "outputs": {out: o.digest for out, o in finished.outcomes[name].manifest.outputs.items()},
        }
        for name in ORDER
    }
    golden = json.loads(GOLDEN.read_text())
    if os.environ.get("BLOOMERY_FREEZE") == "1":
        for name in ORDER:
            before = golden["stages"].get(name, {})
            same = all(before.get(what) == found[name][what] for what in ("version", "inputs"))
            assert not same or before == found[name], f"raise the version of {name}"
        golden |= {"stages": found}
        GOLDEN.write_text(json.dumps(golden, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    for name in ORDER:
        assert found[name] == golden["stages"][name], f"the output of {name} changed: raise its version"


def test_every_record_has_one_fate(finished):
    ingested, cleaned, deduplicated = (finished.rows(stage) for stage in ("ingest", "clean", "dedup"))
    ids = [row["id"] for row in ingested]
    assert len(set(ids)) == len(ids) == len(cleaned)
    assert {row["id"] for row in cleaned} == set(ids)
    kept = {row["id"] for row in cleaned if row["status"] == "kept"}
    assert {row["id"] for row in deduplicated} == kept
    quarantined = Counter(row["rule"] for row in ingested if row["status"] == "quarantined")
    assert quarantined == {
        "jsonl.syntax": 1,
        "jsonl.type": 1,
        "jsonl.text": 1,
        "unicode.surrogate": 1,
        "encoding": 1,
        "record.too_long": 1,
        "file.broken": 1,
        "file.format": 1,
    }
    for row in cleaned:
        assert (row["text"] is not None) == (row["status"] == "kept")
        assert (row["rule"] is None) == (row["status"] == "kept")
        assert (row["threshold"] is not None) == (row["status"] == "dropped")
    dropped = {row["rule"] for row in cleaned if row["status"] == "dropped"}
    assert {"gopher.words", "language.code"} <= dropped


def test_every_tables_manifest_counts_its_rows(finished):
    """And so that its digest is taken of them: no two tables of different rows share one."""
    counted = 0
    for name in ORDER:
        for output, about in finished.outcomes[name].manifest.outputs.items():
            found = artifact(finished.store, finished.outcomes[name].digest, output)
            place = finished.store.root / found.place
            if about.rows is not None and (place.is_dir() or found.place.endswith(SUFFIX)):
                assert about.rows == len(finished.rows(name, output)), f"{name}.{output}"
                counted += about.rows > 0
    assert counted >= 8


def test_ranges_hold_the_records(finished):
    """(offset, length) of a kept record is where its JSON stands."""
    data = (finished.corpus / "plain.jsonl").read_bytes()
    rows = [row for row in finished.rows("ingest") if row["path"] == "plain.jsonl"]
    assert len(rows) == 40 and sum(row["length"] for row in rows) == len(data)
    for row in rows:
        found = json.loads(data[row["offset"] : row["offset"] + row["length"]])
        assert (found["text"], found["url"]) == (row["text"], row["url"])


def test_text_is_extracted_and_mended(finished):
    texts = {
        row["path"]: row["text"]
        for row in finished.rows("clean")
        if not row["path"].endswith((".jsonl", ".gz"))
    }
    assert texts["bom.txt"] == prose(101)
    assert texts["packed.txt.zst"] == prose(100)
    assert "café" in texts["mojibake.txt"] and "Ã" not in texts["mojibake.txt"]
    assert prose(103, 4) in texts["page.html"] and "<p>" not in texts["page.html"]
    assert texts["module.py"] == f"{prose(105)}\n\nf\n{prose(106, 2)}"


def test_duplicates_name_their_survivor(finished):
    rows = {row["id"]: row for row in finished.rows("dedup")}
    duplicates = [row for row in rows.values() if row["status"] == "duplicate"]
    exact = [row for row in duplicates if row["rule"] == "dedup.exact"]
    near = [row for row in duplicates if row["rule"] == "dedup.near"]
    assert len(exact) >= 6 and len(near) >= 6
    for row in duplicates:
        survivor = rows[row["duplicate_of"]]
        assert survivor["status"] == "kept"
        assert (survivor["content"], survivor["id"]) < (row["content"], row["id"])
        assert 0.5 <= row["jaccard"] <= 1.0 and row["split"] is None
    assert any(row["jaccard"] < 1.0 for row in near)
    splits = Counter(row["split"] for row in rows.values() if row["status"] == "kept")
    for row in rows.values():  # drawn by content alone: a text keeps its split in every snapshot
        drawn = "held_out" if int(row["content"][:13], 16) < int(0.2 * 16**13) else "train"
        assert row["split"] == (drawn if row["status"] == "kept" else None)
    assert set(splits) == {"train", "held_out"} and splits["train"] > splits["held_out"]


def test_shards_hold_the_texts(finished):
    shards = artifact(finished.store, finished.outcomes["shard"].digest, "shards")
    tokenizer = artifact(finished.store, finished.outcomes["tokenizer"].digest, "tokenizer").read()
    dataset = check_dataset(shards.local(finished.corpus / "cache"), shards.output.digest)
    policy = dataset.manifest.policy
    assert policy.tokenizer == sha256(tokenizer) and policy.dtype == "<u2"
    table = finished.outcomes["decontaminate"].manifest.outputs["documents"]
    assert dataset.manifest.table == table.digest
    vocabulary = load(tokenizer)
    rows = {row["id"]: row for row in finished.rows("decontaminate") if row["status"] == "kept"}
    for stream in dataset.streams():
        names = dataset.names(stream.source)
        for number in range(len(stream.table)):
            shard = stream.shard(number)
            for position in range(len(shard)):
                row, ids = rows.pop(shard.side.ids[position].tobytes().hex()), shard.document(position)
                assert ids[-1] == policy.eos_id
                assert (row["split"], row["source"]) == (stream.split, stream.source)
                assert vocabulary.decode(ids[:-1].tolist()) == row["text"]
                origin = shard.side.origins[position]
                member = -1 if row["member"] is None else row["member"]
                assert names[int(origin["file"])] == row["path"]
                assert origin.tolist()[:3] == (member, row["offset"], row["length"])
    assert not rows
    assert len(dataset.stream("train", "corpus").table) > 2
    held = {p.relative_to(dataset.folder).as_posix() for p in dataset.folder.rglob("*") if p.is_file()}
    named = {path.relative_to(dataset.folder).as_posix() for path, _ in shard_files(dataset)}
    assert held == named | set(dataset.tables()) | {"manifest.json"}


def test_one_process_writes_the_bytes_that_spark_writes(finished, tmp_path):
    shards = artifact(finished.store, finished.outcomes["shard"].digest, "shards")
    dataset = check_dataset(shards.local(finished.corpus / "cache"))
    policy, splits = dataset.manifest.policy, {}
    vocabulary = load(artifact(finished.store, finished.outcomes["tokenizer"].digest, "tokenizer").read())
    for row in finished.rows("decontaminate"):
        if row["status"] == "kept":
            ids = [*vocabulary.encode(row["text"], add_special_tokens=False).ids, policy.eos_id]
            about = {name: row[name] for name in ("id", "bytes", "url", "path", "member", "offset", "length")}
            stream = splits.setdefault(row["split"], {}).setdefault(row["source"], [])
            stream.append(Document(tokens=ids, **about))
    digest = write_dataset(
        tmp_path,
        splits,
        policy,
        table=dataset.manifest.table,
        target_bytes=finished.outcomes["shard"].manifest.spec.config["target_bytes"],
    )
    assert digest == shards.output.digest
    check_dataset(tmp_path, digest)


@pytest.mark.parametrize("partitions, stages", [(1, ("dedup", "shard")), (7, ORDER)])
def test_partitioning_changes_no_byte(finished, partitions, stages):
    for name in stages:
        before = finished.outcomes[name]
        invalidate(finished.store, before.manifest.spec.key, "test")
        finished.run(*ORDER[: ORDER.index(name) + 1], partitions=partitions)
        assert not finished.outcomes[name].hit
        assert finished.outcomes[name].digest == before.digest, name


def test_a_second_run_hits_every_stage(finished):
    finished.run(*ORDER)
    assert all(outcome.hit for outcome in finished.outcomes.values())


def test_no_scratch_is_left(finished):
    left = [
        path
        for path in Path(finished.store.root).rglob("*")
        if "scratch" in path.parts or ".tmp-" in path.name
    ]
    assert left == []


def test_facts_are_the_funnel(finished):
    facts = finished.outcomes["dedup"].manifest.outputs["documents"].facts
    rows = finished.rows("dedup")
    assert facts["status"] == dict(Counter(row["status"] for row in rows))
    assert facts["rules"] == dict(Counter(row["rule"] for row in rows if row["rule"]))
    assert facts["splits"] == dict(Counter(row["split"] for row in rows if row["split"]))
    shards = finished.outcomes["shard"].manifest.outputs["shards"]
    train, tokens = shards.facts["splits"]["train"], shards.tokens
    assert shards.facts["sources"] == {"corpus": train["tokens"]}
    folder = artifact(finished.store, finished.outcomes["shard"].digest, "shards").local(finished.corpus)
    counts = [
        int(count)
        for stream in Dataset.open(folder).streams()
        for number in range(len(stream.table))
        for count in np.diff(stream.shard(number).side.starts)
    ]
    assert shards.facts["lengths"] == dict(Counter(str(count.bit_length()) for count in counts))
    assert tokens == sum(counts)
