"""Runs a stage: a finished one is returned, an unfinished one is computed once and committed by one
conditional put.

    inputs -> gates -> action of the key? -> claim -> body -> manifest -> action (the commit point)

Before the commit nothing is visible, after it nothing changes. A kill at any point leaves at most an
attempt's folder behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bloomery.artifacts.claim import LEASE, claim
from bloomery.artifacts.manifest import Action, Artifact, Manifest, Spec, read_action, read_manifest
from bloomery.artifacts.refs import read_ref
from bloomery.artifacts.stage import Context, Stage
from bloomery.artifacts.store import Store
from bloomery.config.base import Config, identity
from bloomery.config.run import Execution
from bloomery.errors import BloomeryError


class MissingInputError(BloomeryError):
    """An input was never made, was invalidated, or its bytes are gone."""


class GateError(BloomeryError):
    """A precondition is not met: no verdict, a verdict on other data or under another policy, or a failed
    one."""


@dataclass(frozen=True)
class Outcome:
    """A stage's manifest, and whether it stood there already."""

    manifest: Manifest
    hit: bool

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return self.manifest.digest


def run_stage(
    stage: Stage,
    config: Config,
    upstream: Mapping[str, str],
    store: Store,
    *,
    execution: Execution | None = None,
    policies: Mapping[str, Config] | None = None,
    about: Mapping[str, str] | None = None,
    log: Callable[[str], None] = print,
    lease: float = LEASE,
) -> Outcome:
    """Returns the stage's manifest, computing it if no attempt has.

    Args:
        stage: the declaration.
        config: the stage's section of the run's config.
        upstream: stage name -> digest of its manifest, for every stage that feeds an input and every
        required gate.
        store: where everything stands.
        execution: where and how the body runs.
        policies: gate name -> its section of today's config, for every required gate.
        about: whose run this is, for side records.
        log: takes lines of progress.
        lease: seconds after which a silent holder of the claim is taken over.

    Raises:
        MissingInputError: an input is absent.
        GateError: a required gate did not pass.
    """
    inputs, sources = _inputs(stage, upstream, store)
    spec = stage.spec(config, {name: artifact.output.digest for name, artifact in inputs.items()})
    _check_gates(stage, inputs, upstream, policies or {}, store)
    if found := finished(store, spec.key):
        return Outcome(found, hit=True)
    with claim(store, spec.key, lambda: finished(store, spec.key) is not None, lease) as held:
        if held is None:
            found = finished(store, spec.key)
            assert found is not None
            return Outcome(found, hit=True)
        attempt = f"{held.fence:06d}-{uuid.uuid4().hex[:8]}"
        with tempfile.TemporaryDirectory(prefix=f"bloomery-{stage.name}-") as scratch:
            context = Context(
                config=config,
                inputs=inputs,
                execution=execution or Execution(),
                store=store,
                key=spec.key,
                attempt=f"data/{stage.name}/{spec.key}/{attempt}",
                fence=held.fence,
                sources=sources,
                about=about or {},
                scratch=Path(scratch),
                log=log,
            )
            began = time.time()
            outputs = stage.load()(context)
        return commit(store, spec, outputs, sources, attempt, began)


def commit(
    store: Store,
    spec: Spec,
    outputs: Mapping[str, Artifact],
    sources: Mapping[str, str],
    attempt: str,
    began: float,
) -> Outcome:
    """The commit point. The first attempt wins; a later one returns the winner's manifest."""
    manifest = Manifest(spec=spec, outputs={name: artifact.output for name, artifact in outputs.items()})
    store.put_new(f"manifests/{manifest.digest}", manifest.to_bytes())
    action = Action(
        manifest=manifest.digest,
        places={name: artifact.place for name, artifact in outputs.items()},
        needs=tuple(sorted({key for artifact in outputs.values() for key in artifact.needs})),
        sources=dict(sources),
        attempt=attempt,
        git=git_commit(),
        began=began,
        ended=time.time(),
    )
    store.put_new(f"runs/{spec.key}/{attempt}", action.to_bytes())
    if store.put_new(f"actions/{spec.key}", action.to_bytes()):
        return Outcome(manifest, hit=False)
    winner = read_action(store, spec.key)
    if winner is None:
        raise BloomeryError(f"key {spec.key} was invalidated while it ran", "run it again")
    return Outcome(read_manifest(store, winner.manifest), hit=True)


def finished(store: Store, key: str) -> Manifest | None:
    """The manifest committed under `key`, if all of its outputs still exist."""
    action = read_action(store, key)
    if action is None:
        return None
    if not all(store.exists(place) for place in action.places.values()):
        invalidate(store, key, "outputs are gone")
        return None
    if not all(finished(store, needed) for needed in action.needs):
        invalidate(store, key, "a part that its outputs refer to is gone")
        return None
    return read_manifest(store, action.manifest)


def invalidate(store: Store, key: str, reason: str) -> None:
    """Takes a commit back, with an audited tombstone; the next run of the stage computes again.

    Raises:
        MissingInputError: nothing is committed under `key`.
    """
    action = store.get(f"actions/{key}")
    if action is None:
        raise MissingInputError(
            f"nothing is committed under key {key}", "`bloomery show DIGEST` prints the key of a manifest"
        )
    tombstone = {
        "reason": reason,
        "when": time.time(),
        "who": os.environ.get("USER", ""),
        "action": json.loads(action.data),
    }
    store.put_new(
        f"runs/{key}/invalidated-{uuid.uuid4().hex[:8]}", json.dumps(tombstone, sort_keys=True).encode()
    )
    store.remove(f"actions/{key}")


def artifact(store: Store, manifest_digest: str, output: str) -> Artifact:
    """An output of a committed manifest, with its place.

    Raises:
        MissingInputError: no such manifest or output, or its commit was taken back.
    """
    found = store.get(f"manifests/{manifest_digest}")
    if found is None:
        raise MissingInputError(f"no manifest {manifest_digest}", "run the stage that makes it")
    manifest = Manifest.from_bytes(found.data)
    name = manifest.spec.stage
    if output not in manifest.outputs:
        raise MissingInputError(f"stage {name} has no output {output!r}; it has {sorted(manifest.outputs)}")
    action = read_action(store, manifest.spec.key)
    if action is None or action.manifest != manifest_digest or not store.exists(action.places[output]):
        raise MissingInputError(
            f"{name}.{output} of manifest {manifest_digest} is gone", f"run the stage {name} again"
        )
    return Artifact(manifest.outputs[output], action.places[output], store)


def _inputs(
    stage: Stage, upstream: Mapping[str, str], store: Store
) -> tuple[dict[str, Artifact], dict[str, str]]:
    inputs, sources = {}, {}
    for name, wire in stage.inputs.items():
        source, _, output = wire.partition(".")
        if source not in upstream:
            if name in stage.optional:
                continue
            raise MissingInputError(
                f"stage {stage.name} needs {wire}, which nothing made", f"run the stage {source} first"
            )
        inputs[name] = artifact(store, upstream[source], output)
        sources[name] = upstream[source]
    return inputs, sources


def _check_gates(
    stage: Stage,
    inputs: Mapping[str, Artifact],
    upstream: Mapping[str, str],
    policies: Mapping[str, Config],
    store: Store,
) -> None:
    subjects = {artifact.output.digest for artifact in inputs.values()}
    for gate in stage.gates:
        if gate not in upstream:
            raise GateError(
                f"stage {stage.name} needs a verdict of gate {gate}, and there is none",
                f"run the gate {gate}",
            )
        verdict = read_manifest(store, upstream[gate])
        if not subjects & set(verdict.spec.inputs.values()):
            raise GateError(
                f"the verdict of {gate} judges other data than stage {stage.name} reads",
                f"run the gate {gate}",
            )
        if verdict.spec.stage != gate or verdict.spec.config != identity(policies[gate]):
            raise GateError(f"the verdict of {gate} was given under another policy", f"run the gate {gate}")
        if not verdict.outputs["verdict"].facts["passed"] and not read_ref(
            store, f"waivers/{upstream[gate]}"
        ):
            raise GateError(
                f"gate {gate} did not pass: {'; '.join(verdict.outputs['verdict'].facts['failed'])}",
                f"mend the data, or record a waiver: bloomery waive {upstream[gate]} --reason ...",
            )


@cache
def git_commit() -> str:
    """The commit that runs, for the side record only; empty outside a checkout."""
    answer = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""
