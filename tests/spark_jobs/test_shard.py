"""The stage `shard`: even shards whatever the keys, and the same bytes whatever happens to its tasks."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle
from typing_extensions import override

from bloomery.artifacts.run import artifact, invalidate
from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore
from bloomery.shards.dataset import Policy, check_dataset
from bloomery.shards.keys import keys, parse_ids
from spark_jobs import shard
from spark_jobs.engine import functions, session
from spark_jobs.shard import TOLERANCE, _histogram, _plan, _with_key
from tests.conftest import running_engine
from tests.spark_jobs.conftest import ORDER, Pipeline
from tests.spark_jobs.corpus import write_corpus
from tests.spark_jobs.test_standalone import MEMORY, running_cluster

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
        ours = (keys(parse_ids(ids), seed) ^ np.uint64(1 << 63)).view(np.int64)
        assert ours.tolist() == theirs[str(seed)].to_pylist()


@pytest.mark.parametrize("few", [1 << 20, 200])
@pytest.mark.parametrize("longest, target", [(1, 400), (2000, 4000), (50, 1000), (60_000, 30_000)])
def test_shards_are_even_where_documents_crowd_in_few_ranges_of_the_key(
    spark_engine, tmp_path, monkeypatch, longest, target, few
):
    """2 % or one document: also where the histogram's ranges hold hundreds of documents each."""
    monkeypatch.setattr(shard, "BUCKET_BITS", 4)
    monkeypatch.setattr(shard, "FEW", few)
    draw = np.random.default_rng(longest)
    ids = draw.integers(0, 256, (4000, 16), np.uint8)
    lengths = np.minimum(longest, 1 + draw.pareto(0.7, len(ids)) * 5).astype(int)
    rows = [("train", "web", name.tobytes().hex(), n) for name, n in zip(ids, lengths.tolist(), strict=True)]
    rows += [("train", "tiny", "0" * 32, 5)]
    with spark_of(spark_engine, tmp_path) as spark:
        frame = spark.createDataFrame(rows, "split string, source string, id string, count bigint")
        tokens = _with_key(frame, POLICY.seed).repartition(3)
        found = _histogram(spark, tokens, POLICY, 2 * target)
    plan = _plan(found, POLICY, 2 * target)["train", "web"]
    signed = (keys(ids, POLICY.seed) ^ np.uint64(1 << 63)).view(np.int64)
    held = np.bincount(np.searchsorted(plan.keys, signed, "right") - 1, lengths)
    assert held.sum() == found["train", "web"].tokens.sum() == lengths.sum()
    assert 2 < len(held) == len(plan.keys) <= round(lengths.sum() / target)
    assert held.max() - held.min() <= max(TOLERANCE * held.mean(), lengths.max())


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 7, 16])
def test_no_layout_changes_a_byte(finished, partitions):
    before = finished.outcomes["shard"]
    invalidate(finished.store, before.manifest.spec.key, "test")
    after = finished.run("shard", partitions=partitions)
    assert not after.hit and after.digest == before.digest
    shards = artifact(finished.store, after.digest, "shards")
    check_dataset(shards.local(finished.corpus), shards.output.digest)


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
    confs = tmp_path / "conf"
    confs.mkdir()
    speculation = {
        **{"": "true", ".interval": "50ms", ".multiplier": "1.1", ".quantile": "0.1"},
        **{".minTaskRuntime": "10ms", ".task.duration.threshold": "1s"},
    }
    lines = [f"spark.speculation{name} {value}" for name, value in speculation.items()]
    lines += [f"spark.executor.memory {MEMORY}", "spark.ui.enabled false", "spark.task.maxFailures 20"]
    (confs / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(confs))
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
