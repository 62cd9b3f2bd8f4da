"""What the tasks call: from an item to a stage's manifest, and the work lists of the DAGs.

Nothing here imports an engine; a finished stage costs a few reads of the store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from bloomery.airflow.catalogue import DATA_STAGES, STAGES
from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.manifest import read_action, read_manifest
from bloomery.artifacts.refs import RefMovedError, list_refs, move_ref, read_ref
from bloomery.artifacts.run import Outcome, finished, run_stage
from bloomery.artifacts.store import Store, open_store, probe
from bloomery.config.run import ConfigError, RunConfig, load, parse
from bloomery.config.settings import settings
from bloomery.config.sources import SnapshotConfig
from bloomery.errors import BloomeryError
from spark_jobs.snapshot import take
from training.continuing import open_other
from validation.evals.pending import evaluation, pending
from validation.release.promote import Candidate, champion, consider, promote, sign_candidate
from validation.release.waivers import verdicts_of

Item = dict[str, str]
Log = Callable[..., Any]
PAGES = "/bloomery"
"""Path of our pages in Airflow's web server."""


@cache
def store() -> Store:
    """The store of this deployment."""
    return open_store(settings().store_uri, settings().s3_endpoint)


# --- configs ------------------------------------------------------------------------------------


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


# --- corpus -------------------------------------------------------------------------------------


def begin(config: str, until: str) -> Item:
    """A run's first item. Mutable refs are read here, once a run, and recorded in verdicts alone.

    Raises:
        BloomeryError: the store is not one, no such config, or no checkpoint to begin training with.
    """
    probe(store())
    digest = resolve_config(config)
    resolved = read_config(digest)
    item = {"config": digest, "name": resolved.name, "until": resolved.last(until)}
    if resolved.train.init_from and item["until"] != "corpus":
        open_other(store(), resolved.train.init_from.checkpoint)  # now, not after the data stages
    ref = read_ref(store(), f"datasets/{item['name']}/published")
    return item | ({"published": ref.value["digest"]} if ref else {})


def take_snapshot(item: Item, date: str | None, log: Log) -> Item:
    """Lists the sources, or replays what was listed at a past date (YYYY-MM-DD)."""
    outcome = take(read_config(item["config"]).section(SnapshotConfig), store(), date, log)
    _say("snapshot", outcome, log)
    return item | {"snapshot": outcome.digest}


def run_item(name: str, item: Item, log: Log) -> Item:
    """Runs stage `name` for the run that `item` tells of, and adds its manifest.

    Raises:
        BloomeryError: whatever the stage refuses.
    """
    stage, config = STAGES[name], read_config(item["config"])
    upstream = dict(item)
    if "baseline" in stage.optional and (baseline := _baseline(item)):
        upstream["baseline"] = baseline
    outcome = run_stage(
        stage,
        config.section(stage.config),
        upstream,
        store(),
        execution=config.execution,
        policies={gate: config.section(STAGES[gate].config) for gate in stage.gates},
        about={"config": item["config"], "name": item["name"]},
        log=log,
    )
    _say(name, outcome, log)
    return item | {name: outcome.digest}


def _say(name: str, outcome: Outcome, log: Log) -> None:
    log(f"{name}: {'done already' if outcome.hit else 'made'}: manifest {outcome.digest}")


def judge(gate: str, item: Item) -> list[str]:
    """What the verdict of `gate` warns of; nothing of a stage without one.

    Raises:
        BloomeryError: it did not pass, and nobody has waived it.
    """
    digest = item[gate]
    verdict = read_manifest(store(), digest).outputs.get("verdict")
    if verdict is None:
        return []
    facts = verdict.facts
    if not facts["passed"] and not read_ref(store(), f"waivers/{digest}"):
        raise BloomeryError(
            f"gate {gate} did not pass: {'; '.join(facts['failed'])}",
            f"mend the data or the policy, or record a waiver: bloomery waive {digest} --reason ...",
        )
    return list(facts["warnings"])


def report_url(manifest: str) -> str:
    """Where Airflow's web server shows the report among a manifest's outputs."""
    return f"{settings().airflow_url}{PAGES}/reports/{manifest}"


def _baseline(item: Item) -> str | None:
    """The published profile that this run's drift is measured against, as it stood when the run began.

    A snapshot that is itself published keeps the baseline it was judged against, so that its verdict stands.
    """
    known, kept = (_read_json(item["published"]) if "published" in item else {}), "profile"
    return (known["baseline"] if known.get(kept) == item[kept] else known.get(kept)) or None


def _read_json(digest: str) -> dict[str, Any]:
    return dict(json.loads(store().read(f"cas/{digest}")))


def publish(item: Item, log: Log) -> Item:
    """Makes this the published dataset of its name: what is trained on, and the next drift's baseline."""
    known = {key: item[key] for key in ("config", "name", *DATA_STAGES)}
    known["baseline"] = _baseline(item) or ""
    data = canonical(known)
    store().put_new(f"cas/{sha256(data)}", data)
    shards = read_manifest(store(), item["shard"]).outputs["shards"].digest
    gates = {gate: item[gate] for gate in ("corpus_gate", "shard_gate")}
    _point(verdicts_of(shards), {"digest": item["corpus_gate"], "gates": gates})
    value = {"digest": sha256(data), "manifest": item["shard"], "until": item["until"]}
    _point(f"datasets/{item['name']}/published", value)
    log(f"published {item['name']}: shards {item['shard']}")
    return known | {"until": item["until"]}


def _point(name: str, value: dict[str, Any]) -> None:
    """Moves a ref to `value`, whatever it was: the last one counts."""
    while True:
        ref = read_ref(store(), name)
        if ref and ref.value == value:
            return None
        try:
            return move_ref(store(), name, value, ref)
        except RefMovedError:
            continue


def published(name: str) -> Item:
    """The item of the published dataset of this name.

    Raises:
        BloomeryError: none is published.
    """
    ref = read_ref(store(), f"datasets/{name}/published")
    if ref is None:
        raise BloomeryError(
            f"no dataset is published under the name {name!r}", "run the DAG corpus with such a config"
        )
    return {**_read_json(ref.value["digest"]), "until": ref.value["until"]}


def the_published() -> Item:
    """The item of the one published dataset.

    Raises:
        BloomeryError: none is published, or more than one.
    """
    names = [ref.name.split("/")[1] for ref in list_refs(store(), "datasets/")]
    if len(names) != 1:
        raise BloomeryError(
            f"{len(names)} datasets are published{': ' * bool(names)}{', '.join(names)}",
            "say which with --name" if names else "run the DAG corpus first",
        )
    return published(names[0])


def unstarted() -> list[Item]:
    """Published datasets that are to be trained on and never were: their event was lost."""
    found = []
    for ref in list_refs(store(), "datasets/"):
        item = published(ref.name.split("/")[1])
        if item["until"] != "corpus" and read_ref(store(), f"runs/{_train_key(item)}/head") is None:
            found.append(item)
    return found


def _train_key(item: Item) -> str:
    stage, config = STAGES["train"], read_config(item["config"])
    inputs = {}
    for name, wire in stage.inputs.items():
        source, _, output = wire.partition(".")
        inputs[name] = read_manifest(store(), item[source]).outputs[output].digest
    return stage.spec(config.section(stage.config), inputs).key


def trained(item: Item) -> str | None:
    """Digest of the manifest of the training on this dataset, if it is finished."""
    found = finished(store(), _train_key(item))
    return found.digest if found else None


# --- evaluate -----------------------------------------------------------------------------------


def unevaluated() -> list[Item]:
    """An item for each live checkpoint without an evaluation: what the store says, whatever woke the DAG."""
    return [
        {
            "config": found.config,
            "name": found.name,
            "until": "release",
            "step": str(found.step),
            **found.upstream,
        }
        for found in pending(store())
    ]


def candidates(woken: Iterable[Item]) -> list[Item]:
    """Finished runs with an evaluation: those that woke the DAG, and those that nobody decided on yet."""
    items = {item["train"]: item for item in [*_undecided(), *woken]}
    found = []
    for item in items.values():
        config = read_config(item["config"])
        measured = evaluation(store(), config.evaluate, item)
        if measured and config.release.export:
            found.append(item | {"evaluate": measured})
    return found


LOST_AFTER = 1800.0
"""Seconds after the end of a training without a decision, after which its event counts as lost."""


def _undecided() -> Iterable[Item]:
    """Finished runs whose event was lost: without a decision, as the heads of the journals tell."""
    for ref in list_refs(store(), "runs/"):
        run = ref.name.split("/")[1]
        done, action = finished(store(), run), read_action(store(), run)
        if done is None or action is None or time.time() - action.ended < LOST_AFTER:
            continue
        if read_ref(store(), f"decisions/{done.digest}"):
            continue
        item = {key: ref.value[key] for key in ("config", "name", "shard", "tokenizer")}
        dataset = read_ref(store(), f"datasets/{item['name']}/published")
        yield item | {"until": dataset.value["until"] if dataset else "release", "train": done.digest}


# --- release ------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A candidate that does not become the champion, and why."""

    reasons: str


class ApprovalRequest(NamedTuple):
    """What a person is asked, or that nobody is."""

    auto: bool
    subject: str
    body: str
    approvers: tuple[str, ...]


def _candidate(item: Item) -> Candidate:
    return Candidate(export=item["export"], evaluate=item["evaluate"], config=item["config"])


def decide(item: Item, log: Log) -> Item | Kept:
    """Better than the champion, or the first? Records the decision."""
    now = champion(store(), item["name"])
    decision = consider(store(), item["name"], _candidate(item), read_config(item["config"]).release)
    reasons = "; ".join(decision.reasons)
    value = {"digest": item["evaluate"], "promote": decision.promote, "reasons": reasons}
    _point(f"decisions/{item['train']}", value)
    if now and now.digest == item["export"]:
        log(f"decide: done already: {reasons}")
        return Kept(reasons)
    log(f"decide: {'promote' if decision.promote else 'kept'}: {reasons}")
    return item | {"reasons": reasons} if decision.promote else Kept(reasons)


def sign(item: Item, log: Log) -> Item:
    """Signs the exported model."""
    signature = sign_candidate(store(), _candidate(item))
    log(f"sign: made: signature {signature}")
    return item | {"signature": signature}


def approval_request(item: Item) -> ApprovalRequest:
    """What to ask before `item` becomes the champion."""
    release = read_config(item["config"]).release
    facts = read_manifest(store(), item["evaluate"]).outputs["eval"].facts
    body = (
        f"**{item['name']}**: {facts['bits_per_byte']:.4f} bits per byte on the held-out split.\n\n"
        f"{item['reasons']}\n\nExport: `{item['export']}`\n\nSignature: `{item['signature']}`"
    )
    return ApprovalRequest(release.auto_approve, f"Release {item['name']}?", body, release.approvers)


def release(item: Item, approver: str, log: Log) -> Item:
    """Makes the candidate the champion: one compare-and-swap, then the mirror in MLflow."""
    policy = read_config(item["config"]).release
    verdict = promote(store(), item["name"], _candidate(item), item["signature"], policy, approver, log)
    if verdict.release is None:
        log(f"kept: {'; '.join(verdict.decision.reasons)}")
        return item
    log(f"promote: made: {item['name']} version {verdict.release.version}, approved by {approver}")
    return item | {"version": str(verdict.release.version)}
