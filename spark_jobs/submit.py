"""The same stages by spark-submit on a cluster: this process is the driver; no server is needed.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 spark_jobs/submit.py \\
        clean configs/8b.yaml snapshot=DIGEST ingest=DIGEST corpus_gate=DIGEST

The executors need the package and its extra `spark`. `snapshot CONFIG` takes a snapshot.
The last line it prints is the manifest's digest.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from bloomery.artifacts.run import Outcome, run_stage
from bloomery.artifacts.store import open_store
from bloomery.config.base import Config
from bloomery.config.gates import CorpusGateConfig
from bloomery.config.run import load
from bloomery.config.settings import settings
from bloomery.config.sources import SnapshotConfig
from bloomery.errors import BloomeryError
from spark_jobs.engine import CLASSIC
from spark_jobs.snapshot import take
from spark_jobs.stages import STAGES

POLICIES: dict[str, type[Config]] = {"corpus_gate": CorpusGateConfig}
"""Section of the config that each gate before our stages judges by."""


def main(arguments: Sequence[str]) -> int:
    """Runs one stage; 1 and an error with its remedy where it fails."""
    parser = argparse.ArgumentParser(
        "spark_jobs.submit", description="Run one data stage as its own Spark driver."
    )
    parser.add_argument("stage", choices=sorted(STAGES))
    parser.add_argument("config", help="YAML file of the run")
    parser.add_argument("upstream", nargs="*", help="STAGE=MANIFEST of every stage and gate before it")
    given = parser.parse_args(arguments)
    os.environ[CLASSIC] = "1"
    try:
        outcome = _run(given.stage, given.config, dict(pair.split("=", 1) for pair in given.upstream))
    except BloomeryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(outcome.digest)
    return 0


def _run(name: str, path: str, upstream: dict[str, str]) -> Outcome:
    config, stage = load(path), STAGES[name]
    store = open_store(settings().store_uri, settings().s3_endpoint)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if name == "snapshot":
        return take(config.section(SnapshotConfig), store, None, say)
    policies = {gate: config.section(POLICIES[gate]) for gate in stage.gates}
    return run_stage(
        stage,
        config.section(stage.config),
        upstream,
        store,
        execution=config.execution,
        policies=policies,
        log=say,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
