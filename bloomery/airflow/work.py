"""What the tasks call: from an item to a stage's manifest, and the work lists of the DAGs.

Nothing here imports an engine; a finished stage costs a few reads of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from bloomery.airflow.catalogue import STAGES
from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.manifest import Manifest
from bloomery.artifacts.refs import move_ref, read_ref
from bloomery.artifacts.run import Outcome, run_stage
from bloomery.artifacts.store import Store, open_store
from bloomery.config.run import ConfigError, RunConfig, load, parse
from bloomery.config.settings import settings
from bloomery.errors import BloomeryError

Item = dict[str, str]
Log = Callable[..., None]


@cache
def store() -> Store:
    """The store of this deployment."""
    return open_store(settings().store_uri, settings().s3_endpoint)


def keep_config(config: RunConfig) -> str:
    """Keeps the resolved config in the store; its digest stands for it from here on."""
    data = canonical(config.model_dump(mode="json"))
    store().put_new(f"cas/{sha256(data)}", data)
    return sha256(data)


def read_config(digest: str) -> RunConfig:
    """The resolved config that `keep_config` kept."""
    found = store().get(f"cas/{digest}")
    if found is None:
        raise ConfigError(
            f"no config {digest} in {store().uri}", "name a YAML file, or a digest that was kept there"
        )
    return parse(found.data.decode(), f"config {digest[:12]}")


def resolve_config(given: str) -> str:
    """Digest of the resolved config that a form or a command names: a YAML file's path, or such a digest."""
    if len(given) == 64 and set(given) <= set("0123456789abcdef"):
        read_config(given)
        return given
    return keep_config(load(given))


def begin(config: str, until: str) -> Item:
    """A run's first item. Mutable refs are read here, once a run, and enter only the verdicts that record
    them."""
    digest = resolve_config(config)
    item = {"config": digest, "name": read_config(digest).name, "until": until}
    published = read_ref(store(), f"datasets/{item['name']}/published")
    return item | ({"published": published.value["digest"]} if published else {})


def take_snapshot(item: Item, date: str | None, log: Log) -> Item:
    """Lists the sources, or replays what was listed at a past date."""
    from spark_jobs.snapshot import take

    from bloomery.config.corpus import SnapshotConfig

    outcome = take(read_config(item["config"]).section(SnapshotConfig), store(), date, log)
    _say("snapshot", outcome, log)
    return item | {"snapshot": outcome.digest}


def run_item(name: str, item: Item, log: Log) -> Item:
    """Runs stage `name` for the run that `item` tells of, and adds its manifest.

    Raises:
        BloomeryError: whatever the stage refuses; a gate that did not pass.
    """
    stage, config = STAGES[name], read_config(item["config"])
    policies = {gate: config.section(STAGES[gate].config) for gate in stage.gates}
    upstream = dict(item)
    if name == "corpus_gate" and (baseline := _baseline(item)):
        upstream["baseline"] = baseline
    outcome = run_stage(
        stage,
        config.section(stage.config),
        upstream,
        store(),
        execution=config.execution,
        policies=policies,
        about={"config": item["config"], "name": item["name"]},
        log=log,
    )
    _say(name, outcome, log)
    _judge(name, outcome, log)
    return item | {name: outcome.digest}


def _say(name: str, outcome: Outcome, log: Log) -> None:
    what = "done already" if outcome.hit else "made"
    log(f"{name}: {what}: manifest {outcome.digest}")


def _judge(name: str, outcome: Outcome, log: Log) -> None:
    verdict = outcome.manifest.outputs.get("verdict")
    if verdict is None:
        return
    report = store().uri + "/" + _place(outcome.manifest, "report")
    log(f"{name}: report: {report}")
    if not verdict.facts["passed"] and not read_ref(store(), f"waivers/{outcome.digest}"):
        raise BloomeryError(
            f"gate {name} did not pass: {'; '.join(verdict.facts['failed'])}\nReport: {report}",
            f"mend the data or the policy, or record a waiver: bloomery waive {outcome.digest} --reason ...",
        )


def _place(manifest: Manifest, output: str) -> str:
    from bloomery.artifacts.manifest import read_action

    action = read_action(store(), manifest.spec.key)
    return action.places[output] if action else ""


def _baseline(item: Item) -> str | None:
    """The published snapshot that this run's drift is measured against, as it stood when the run began.

    A snapshot that is itself published keeps the baseline it was judged against, so that its verdict stands.
    """
    if "published" not in item:
        return None
    published = store().get(f"cas/{item['published']}")
    known = _json(published.data) if published else {}
    if known.get("dedup") == item["dedup"]:
        return known.get("baseline") or None
    return known.get("dedup")


def _json(data: bytes) -> Item:
    import json

    return dict(json.loads(data))


def publish(item: Item, log: Log) -> Item:
    """Makes the shards the published dataset of this name: what `pretrain` trains on and the next snapshot
    is compared with."""
    known = {
        key: item[key]
        for key in ("config", "name", "dedup", "corpus_gate", "tokenizer", "shard", "shard_gate")
    }
    known |= {"baseline": _baseline(item) or ""}
    data = canonical(known)
    store().put_new(f"cas/{sha256(data)}", data)
    name = f"datasets/{item['name']}/published"
    while True:
        ref = read_ref(store(), name)
        if ref and ref.value["digest"] == sha256(data):
            break
        try:
            move_ref(store(), name, {"digest": sha256(data), "until": item["until"]}, ref)
            break
        except BloomeryError:
            log(f"{name} was moved by another; reading it again")
    log(f"published {item['name']}: shards {item['shard']}")
    return {**known, "until": item["until"]}
