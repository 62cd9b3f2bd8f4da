"""A store, a corpus and stages that run on the session's one engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bloomery.airflow.catalogue import STAGES
from bloomery.artifacts.run import Outcome, run_stage
from bloomery.artifacts.store import LocalStore, Store
from bloomery.config.gates import CorpusGateConfig, ShardGateConfig
from spark_jobs.snapshot import take
from tests.spark_jobs.corpus import CONFIGS, snapshot_config, write_corpus

ORDER = (
    *("ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate"),
    *("ledger", "profile", "tokenizer", "shard"),
)
GATES = {"corpus_gate": CorpusGateConfig(), "shard_gate": ShardGateConfig()}


class Pipeline:
    """Runs stages in order in one store; what gates demand is tested elsewhere."""

    def __init__(self, store: Store, corpus: Path, execution: Callable[[int], Any]) -> None:
        self.store, self.corpus, self.execution = store, corpus, execution
        self.said: list[str] = []
        self.about: dict[str, str] = {}
        self.snapshot = snapshot_config(corpus)
        self.outcomes: dict[str, Outcome] = {}

    def run(self, *names: str, partitions: int = 2, configs: dict[str, Any] | None = None) -> Outcome:
        """Runs a snapshot, then `names`; returns the last outcome."""
        outcome = take(self.snapshot, self.store, None, self.said.append)
        self.outcomes["snapshot"] = outcome
        for name in names:
            outcome = self.stage(name, partitions, configs)
        return outcome

    def stage(self, name: str, partitions: int = 2, configs: dict[str, Any] | None = None) -> Outcome:
        """Runs one stage on what was run before."""
        chosen = CONFIGS | GATES | (configs or {})
        self.outcomes[name] = run_stage(
            replace(STAGES[name], gates=()),
            chosen[name],
            {done: found.digest for done, found in self.outcomes.items()},
            self.store,
            execution=self.execution(partitions),
            about=self.about,
            log=self.said.append,
        )
        return self.outcomes[name]

    def rows(self, stage: str, output: str = "documents") -> list[dict[str, Any]]:
        """Every row of a table, read without Spark."""
        return self.rows_of(self.outcomes[stage].digest, output)

    def rows_of(self, manifest: str, output: str = "documents") -> list[dict[str, Any]]:
        """Every row of the table of a manifest."""
        from bloomery.artifacts.run import artifact
        from spark_jobs.explain import read_rows

        return read_rows(artifact(self.store, manifest, output), self.corpus.parent / "cache")


@pytest.fixture
def pipeline(tmp_path: Path, spark_engine: Any) -> Pipeline:
    """A pipeline over an empty folder."""
    (tmp_path / "corpus").mkdir()
    return Pipeline(LocalStore(tmp_path / "store"), tmp_path / "corpus", spark_engine.execution)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, spark_engine: Any) -> Pipeline:
    """The fixed corpus, run through every stage once."""
    folder = tmp_path_factory.mktemp("finished")
    write_corpus(folder / "corpus")
    made = Pipeline(LocalStore(folder / "store"), folder / "corpus", spark_engine.execution)
    made.run(*ORDER)
    return made
