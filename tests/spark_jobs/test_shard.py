"""The stage `shard`: even shards whatever the keys, and the same bytes whatever happens to its tasks."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle
from typing_extensions import override

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.run import artifact, invalidate, run_stage
from bloomery.artifacts.stage import Context, Stage
from bloomery.artifacts.store import LocalStore
from bloomery.config.base import Config
from bloomery.config.corpus import ShardConfig
from bloomery.shards import bounds
from bloomery.shards.bounds import TOLERANCE
from bloomery.shards.dataset import Policy, check_dataset
from bloomery.shards.keys import keys, parse_ids
from bloomery.shards.write import Document, write_dataset
from spark_jobs.engine import functions, session
from spark_jobs.histogram import histogram, plan, signed, unsigned
from spark_jobs.shard import _with_key
from spark_jobs.stages import STAGES
from spark_jobs.tables import write_table
from spark_jobs.tokenizer import SEPARATOR, load
from tests.conftest import running_engine
from tests.spark_jobs.conftest import ORDER, Pipeline
from tests.spark_jobs.corpus import prose, write_corpus
from tests.spark_jobs.test_standalone import running_cluster, spark_defaults

GROUP = ("source", "path", "status", "rule")
POLICY = Policy.of("0" * 64, 1000, 0, seed=5)


@contextmanager
def spark_of(spark_engine: Any, folder: Path) -> Iterator[Any]:
    context = Context(
        config=None,
        inputs={},
        execution=spark_engine.execution(),
        store=LocalStore(folder / "store"),
        key="test",
        attempt="data/test/1",
        fence=1,
        sources={},
        about={},
        scratch=folder,
    )
    with session(context) as spark:
        yield spark


def test_the_key_is_sparks_own(spark_engine, tmp_path):
    draw, F = random.Random(0), functions()  # noqa: N806
    seeds = [0, 1, 2**31, 2**63 - 1, *(draw.getrandbits(63) for _ in range(20))]
    ids = [f"{draw.getrandbits(128):032x}" for _ in range(200)] + ["0" * 32, "f" * 32]
    with spark_of(spark_engine, tmp_path) as spark:
        frame = spark.createDataFrame([(name,) for name in ids], "id string")
        columns = [F.xxhash64(F.lit(seed).cast("bigint"), "id").alias(str(seed)) for seed in seeds]
        theirs = frame.select(*columns).toArrow()
    for seed in seeds:
        ours = signed(keys(parse_ids(ids), seed))
        assert ours.tolist() == theirs[str(seed)].to_pylist()
        assert unsigned(ours).tolist() == keys(parse_ids(ids), seed).tolist()


@pytest.mark.parametrize("longest, target", [(1, 400), (2000, 4000), (50, 1000), (60_000, 30_000)])
def test_shards_are_even_where_documents_crowd_in_few_ranges_of_the_key(
    spark_engine, tmp_path, monkeypatch, longest, target
):
    """2 % or one document: also where the histogram's ranges hold hundreds of documents each."""
    monkeypatch.setattr(bounds, "BUCKET_BITS", 4)
    draw = np.random.default_rng(longest)
    ids = draw.integers(0, 256, (4000, 16), np.uint8)
    lengths = np.minimum(longest, 1 + draw.pareto(0.7, len(ids)) * 5).astype(int)
    rows = [("train", "web", name.tobytes().hex(), n) for name, n in zip(ids, lengths.tolist(), strict=True)]
    rows += [("train", "tiny", "0" * 32, 5)]
    with spark_of(spark_engine, tmp_path) as spark:
        frame = spark.createDataFrame(rows, "split string, source string, id string, count bigint")
        tokens = _with_key(frame, POLICY.seed).repartition(3)
        found = histogram(spark, tokens, POLICY, 2 * target)
    web = plan(found, POLICY, 2 * target)["train", "web"]
    held = np.bincount(np.searchsorted(web.keys, keys(ids, POLICY.seed), "right") - 1, lengths)
    assert held.sum() == found["train", "web"].tokens.sum() == lengths.sum()
    assert 2 < len(held) == len(web.keys) <= round(lengths.sum() / target)
    assert held.max() - held.min() <= max(TOLERANCE * held.mean(), lengths.max())


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 7, 16])
def test_no_layout_changes_a_byte(finished, partitions):
    before = finished.outcomes["shard"]
    invalidate(finished.store, before.manifest.spec.key, "test")
    after = finished.run("shard", partitions=partitions)
    assert not after.hit and after.digest == before.digest
    shards = artifact(finished.store, after.digest, "shards")
    check_dataset(shards.local(finished.corpus), shards.output.digest)


class Survivors(Config):
    """Documents to make."""

    count: int


def survivors(config: Survivors) -> list[dict[str, Any]]:
    """Documents of three sources, of which one is held out whole; a few of many hosts and files."""
    draw, rows = random.Random(config.count), []
    for number in range(config.count):
        source = draw.choice(["web", "web", "books", "rare"])
        split = "held_out" if source == "rare" or draw.random() < 0.2 else "train"
        text = prose(number, int(draw.paretovariate(0.9)) % 60)
        rows.append(
            {
                "id": f"{draw.getrandbits(128):032x}",
                "source": source,
                "split": split,
                "path": f"{draw.choice('abc')}/é{number % 4}.warc.gz",
                "member": draw.choice([None, draw.getrandbits(40)]),
                "offset": draw.getrandbits(40),
                "length": len(text) + 9,
                "url": draw.choice([None, f"https://www.s{draw.randrange(300)}.net/{number}"]),
                "text": text,
                "bytes": len(text.encode()),
                "status": draw.choice(["kept"] * 9 + ["contaminated"]),
                "rule": None,
            }
        )
    return rows


def put_survivors(context: Context) -> dict[str, Artifact]:
    """Body of a stage that stands for `decontaminate`."""
    schema = (
        "id string, source string, split string, path string, member bigint, offset bigint, length bigint, "
        "url string, text string, bytes bigint, status string, rule string"
    )
    with session(context) as spark:
        frame = spark.createDataFrame([tuple(row.values()) for row in survivors(context.config)], schema)
        profile = write_table(spark, context, "documents", frame.repartition(3), GROUP, ("bytes",))
    return {"documents": context.artifact("documents", profile.output())}


@pytest.mark.parametrize("count, bits", [(1, 20), (12, 4), (700, 20), (700, 8), (300, 4)])
def test_many_sources_as_one_process_writes_them(finished, tmp_path, monkeypatch, count, bits):
    """Streams by source; a source that is held out whole has no training token, and is named all the same.

    With fewer bits many documents share a range of the key, as they do where there are millions of them.
    """
    monkeypatch.setattr(bounds, "BUCKET_BITS", bits)
    config = Survivors(count=count)
    stage = Stage("decontaminate", 0, Survivors, body="tests.spark_jobs.test_shard:put_survivors")
    upstream = {"tokenizer": finished.outcomes["tokenizer"].digest}
    run = partial(run_stage, store=finished.store, execution=finished.execution(3), log=lambda _: None)
    upstream["decontaminate"] = run(stage, config, {}).digest
    made = run(replace(STAGES["shard"], gates=()), ShardConfig(target_bytes=2048, seed=bits), upstream)
    shards = artifact(finished.store, made.digest, "shards")
    opened = check_dataset(shards.local(tmp_path), shards.output.digest)
    vocabulary = load(artifact(finished.store, upstream["tokenizer"], "tokenizer").read())
    splits: dict[str, Any] = {}
    for row in survivors(config):
        if row["status"] == "kept":
            tokens = [
                *vocabulary.encode(row["text"], add_special_tokens=False).ids,
                vocabulary.token_to_id(SEPARATOR),
            ]
            about = {name: row[name] for name in Document._fields if name != "tokens"}
            stream = splits.setdefault(row["split"], {}).setdefault(row["source"], [])
            stream.append(Document(tokens=tokens, **about))
    table = artifact(finished.store, upstream["decontaminate"], "documents").output.digest
    whole = write_dataset(tmp_path / "w", splits, opened.manifest.policy, table=table, target_bytes=2048)
    assert whole == shards.output.digest
    train = splits.get("train", {})
    assert shards.output.facts["sources"] == {
        source: sum(len(document.tokens) for document in train.get(source, []))
        for source in sorted({source for held in splits.values() for source in held})
    }
    for stream in opened.streams():
        sides = [stream.shard(number).side for number in range(len(stream.table))]
        longest = max(int(side.lengths[-1]) for side in sides)
        held = stream.table.tokens.astype(np.int64)
        assert held.max() - held.min() <= max(TOLERANCE * held.mean(), longest)


class Unsteady(LocalStore):
    """The first upload of a file breaks off half-way or takes long, by turns; the next ones are well.

    `log` has a line for each upload: what became of it.
    """

    def __init__(self, root: Path, log: Path) -> None:
        super().__init__(root)
        self.log = log

    @override
    def upload(self, path: Path, key: str) -> None:
        fate = ("fails", "lags", "is well")[int(path.stem[:8], 16) % 3]
        try:
            (self.log / path.name).touch(exist_ok=False)
        except FileExistsError:
            fate = "comes again"
        with open(self.log / "fates", "a") as log:
            log.write(f"{fate}\n")
        if fate == "fails":
            target = self.root / key
            target.parent.mkdir(parents=True, exist_ok=True)
            (target.parent / f".tmp-{os.getpid()}").write_bytes(path.read_bytes()[:7])
            raise OSError("the disk has gone away")
        if fate == "lags":
            time.sleep(4)
        super().upload(path, key)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_failures_and_speculation_change_no_byte(finished, tmp_path, monkeypatch):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    speculation = {
        **{"": "true", ".interval": "50ms", ".multiplier": "1.1", ".quantile": "0.1"},
        **{".minTaskRuntime": "10ms", ".task.duration.threshold": "1s"},
    }
    lines = [f"spark.speculation{name} {value}" for name, value in speculation.items()]
    spark_defaults(monkeypatch, tmp_path / "conf", "spark.task.maxFailures 20", *lines)
    expected = finished.outcomes["shard"].digest
    write_corpus(tmp_path / "corpus")
    with (
        running_cluster(tmp_path) as cluster,
        running_engine(tmp_path, master=cluster.master) as engine,
    ):
        pipeline = Pipeline(LocalStore(tmp_path / "store"), tmp_path / "corpus", engine.execution)
        pipeline.run(*ORDER)
        assert pipeline.outcomes["shard"].digest == expected
        fates = []
        for partitions in (1, 2, 3, 5, 7, 16):
            invalidate(pipeline.store, pipeline.outcomes["shard"].manifest.spec.key, "test")
            log = tmp_path / f"log-{partitions}"
            log.mkdir()
            steady, pipeline.store = pipeline.store, Unsteady(tmp_path / "store", log)
            after = pipeline.run("shard", partitions=partitions)
            assert not after.hit and after.digest == expected
            shards = artifact(pipeline.store, after.digest, "shards")
            check_dataset(pipeline.store.root / shards.place, shards.output.digest)
            assert not list(pipeline.store.root.rglob(".tmp-*"))
            fates += (log / "fates").read_text().splitlines()
            pipeline.store = steady
    assert min(fates.count(fate) for fate in ("fails", "lags", "comes again")) > 6
