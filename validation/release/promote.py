"""Promotion: a signed candidate becomes the champion by one compare-and-swap.

    re-hash, signature, policy -> swap refs/models/NAME/champion -> releases/NAME/VERSION -> MLflow

The ref is the commit point and holds the whole release. The log releases/ is dense and append-only: an entry
that a kill kept from being written is written by whoever comes next. MLflow only mirrors.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.digests import file_digest, tree_digest
from bloomery.artifacts.manifest import Artifact, read_manifest
from bloomery.artifacts.refs import RefMovedError, move_ref, read_ref
from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import Store
from bloomery.config.base import Config
from bloomery.config.release import ReleaseConfig
from bloomery.errors import BloomeryError
from validation.release.mirror import mirror
from validation.release.policy import Decision, Eval, decide
from validation.release.signing import SignatureError, sign, verify
from validation.release.waivers import unwaived


class ReleaseError(BloomeryError):
    """A candidate that cannot be released: its parts do not belong together."""


class Release(Config):
    """A released version: what the champion's ref and the log hold."""

    name: str
    version: int
    digest: str
    """Of the export's manifest."""
    model: str
    """Content digest of the model's folder."""
    eval: Eval
    signature: str
    """sha256 of the signature, kept in cas/."""
    approver: str
    config: str
    reasons: tuple[str, ...]
    released: float
    """Seconds since 1970."""


class Candidate(NamedTuple):
    """What is proposed: manifests of stages `export` and `evaluate`, and the run's config."""

    export: str
    evaluate: str
    config: str = ""


class Verdict(NamedTuple):
    """What came of a candidate: the release that it became (or was already), or kept with the reasons."""

    decision: Decision
    release: Release | None


def champion(store: Store, name: str) -> Release | None:
    """The champion of a model, or None."""
    ref = read_ref(store, f"models/{name}/champion")
    return Release.model_validate(ref.value) if ref else None


def releases(store: Store, name: str) -> Iterator[Release]:
    """The log of a model, oldest first."""
    for key in store.keys(f"releases/{name}/"):
        yield Release.model_validate_json(store.read(key))


def read_eval(store: Store, digest: str) -> Eval:
    """What the policy looks at, of an eval's manifest."""
    manifest = read_manifest(store, digest)
    return Eval(
        digest=digest,
        bits_per_byte=manifest.outputs["eval"].facts["bits_per_byte"],
        shards=manifest.spec.inputs["shards"],
    )


def consider(store: Store, name: str, candidate: Candidate, policy: ReleaseConfig) -> Decision:
    """What the policy says of a candidate against today's champion; changes nothing.

    Raises:
        ReleaseError: the eval is of another checkpoint.
    """
    check_parts(store, candidate)
    now = champion(store, name)
    if now and now.digest == candidate.export:
        return Decision(True, (f"released already as version {now.version}",))
    measured = read_eval(store, candidate.evaluate)
    return decide(now.eval if now else None, measured, policy, unwaived(store, measured.shards))


def sign_candidate(store: Store, candidate: Candidate) -> str:
    """Signs the exported model; returns the sha256 under which the signature is kept in cas/."""
    with tempfile.TemporaryDirectory(prefix="bloomery-sign-") as scratch:
        model = artifact(store, candidate.export, "model")
        signature = sign(rehash(model, Path(scratch) / "model"), Path(scratch))
    store.put_new(f"cas/{sha256(signature)}", signature)
    return sha256(signature)


def promote(
    store: Store,
    name: str,
    candidate: Candidate,
    signature: str,
    policy: ReleaseConfig,
    approver: str,
    log: Callable[[str], None] = print,
) -> Verdict:
    """Makes a candidate the champion, if the policy says so of the champion as it stands at that moment.

    Args:
        store: where everything stands.
        name: of the model.
        candidate: what is proposed.
        signature: as sign_candidate returned it.
        policy: of today.
        approver: who approved.
        log: takes lines of progress.

    Raises:
        SignatureError: the model's bytes changed, or another key signed them.
        ReleaseError: the eval is of another checkpoint.
    """
    with tempfile.TemporaryDirectory(prefix="bloomery-promote-") as scratch:
        model = artifact(store, candidate.export, "model")
        verify(rehash(model, Path(scratch) / "model"), store.read(f"cas/{signature}"), Path(scratch))
    while True:
        ref = read_ref(store, f"models/{name}/champion")
        now = Release.model_validate(ref.value) if ref else None
        if now:
            write_log(store, now)  # its own promotion may have been killed before it could
        decision = consider(store, name, candidate, policy)
        if not decision.promote:
            log(f"kept the champion of {name}: {'; '.join(decision.reasons)}")
            return Verdict(decision, None)
        if now and now.digest == candidate.export:
            return Verdict(decision, now)
        release = Release(
            name=name,
            version=now.version + 1 if now else 1,
            digest=candidate.export,
            model=model.output.digest,
            eval=read_eval(store, candidate.evaluate),
            signature=signature,
            approver=approver,
            config=candidate.config,
            reasons=decision.reasons,
            released=time.time(),
        )
        try:
            move_ref(store, f"models/{name}/champion", release.model_dump(mode="json"), ref)
        except RefMovedError:
            log(f"another release of {name} was faster; deciding anew")
            continue
        write_log(store, release)
        log(f"released {name} version {release.version}: {release.model}")
        mirror(release, log)
        return Verdict(decision, release)


def check_parts(store: Store, candidate: Candidate) -> None:
    """Refuses an eval of another checkpoint than the exported one."""
    exported = read_manifest(store, candidate.export).spec.inputs["checkpoint"]
    measured = read_manifest(store, candidate.evaluate).spec.inputs["checkpoint"]
    if exported != measured:
        raise ReleaseError(
            f"the model was exported from checkpoint {exported[:12]}, the eval is of {measured[:12]}",
            "evaluate the checkpoint that is exported",
        )


def write_log(store: Store, release: Release) -> None:
    """Appends a release to the log; again is fine."""
    data = json.dumps(release.model_dump(mode="json"), sort_keys=True).encode()
    store.put_new(f"releases/{release.name}/{release.version:06d}", data)


def rehash(model: Artifact, cache: Path) -> Path:
    """A local folder of the model, whose bytes were hashed again.

    Raises:
        SignatureError: they are not those that were exported.
    """
    folder = model.local(cache)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = tree_digest({path.relative_to(folder).as_posix(): file_digest(path) for path in files})
    if found != model.output.digest:
        raise SignatureError(
            f"{folder}: content digest {found}, exported as {model.output.digest}", "export the model again"
        )
    return folder
