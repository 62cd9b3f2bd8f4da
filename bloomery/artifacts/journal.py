"""A training run as a journal: each checkpoint names its parent, and refs/runs/<key>/head moves by
compare-and-swap.

    checkpoint 50 <- checkpoint 100 <- checkpoint 150 <- head {digest, step, fence}

Only a holder of the run's newest fencing number moves the head: a group that lost its place cannot publish.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bloomery.artifacts.manifest import Artifact, Manifest, Spec, read_manifest
from bloomery.artifacts.refs import Ref, move_ref, read_ref
from bloomery.artifacts.run import artifact, commit
from bloomery.artifacts.store import Store
from bloomery.errors import BloomeryError


class FencedError(BloomeryError):
    """A later attempt has taken the run over."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    manifest: Manifest

    @property
    def digest(self) -> str:
        """Digest of the checkpoint's manifest."""
        return self.manifest.digest

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.manifest.spec.config["step"])

    @property
    def parent(self) -> str | None:
        """Digest of the parent's manifest."""
        return self.manifest.spec.config["parent"] or None

    @property
    def receipt(self) -> str:
        """Chained hash of all samples consumed up to here."""
        return str(self.manifest.spec.config["receipt"])


class Journal:
    """The checkpoints of one run; `run` is the key of its train stage."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.run = store, run

    def _ref(self) -> Ref | None:
        return read_ref(self.store, f"runs/{self.run}/head")

    def open(self, fence: int, about: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Takes the run over under `fence` and returns the checkpoint to resume from.

        `about` is kept with the head for whoever lists runs (config digest, name).

        Raises:
            FencedError: a later attempt holds it.
        """
        while True:
            ref = self._ref()
            if ref and ref.value["fence"] > fence:
                raise FencedError(
                    f"run {self.run[:12]} is held under fence {ref.value['fence']}, this attempt has {fence}"
                )
            value = {
                "digest": "",
                "step": 0,
                "live": [],
                **(ref.value if ref else {}),
                **(about or {}),
                "fence": fence,
            }
            try:
                move_ref(self.store, f"runs/{self.run}/head", value, ref)
            except BloomeryError:
                continue
            return self.head()

    def append(self, step: int, weights: Artifact, fence: int, receipt: str, keep_last: int) -> Checkpoint:
        """Commits a checkpoint and moves the head to it; the newest `keep_last` stay live.

        Raises:
            FencedError: a later attempt holds the run; nothing was published.
        """
        ref = self._ref()
        if ref is None or ref.value["fence"] != fence:
            raise FencedError(
                f"run {self.run[:12]}: fence {fence} is not the run's any more; step {step} is not published"
            )
        config = {
            "run": self.run,
            "step": step,
            "parent": ref.value["digest"],
            "receipt": receipt,
            "fence": fence,
        }
        spec = Spec(stage="checkpoint", version=1, config=config, inputs={}, libraries={})
        sources = {"parent": ref.value["digest"]} if ref.value["digest"] else {}
        made = commit(self.store, spec, {"weights": weights}, sources, f"{fence:06d}-{step:09d}", time.time())
        live = [*ref.value["live"], made.digest][-keep_last:]
        try:
            move_ref(
                self.store,
                f"runs/{self.run}/head",
                ref.value | {"digest": made.digest, "step": step, "live": live},
                ref,
            )
        except BloomeryError as error:
            raise FencedError(
                f"run {self.run[:12]}: the head moved under fence {fence} at step {step}"
            ) from error
        return Checkpoint(made.manifest)

    def head(self) -> Checkpoint | None:
        """The newest checkpoint, or None."""
        ref = self._ref()
        return (
            Checkpoint(read_manifest(self.store, ref.value["digest"]))
            if ref and ref.value["digest"]
            else None
        )

    def live(self) -> list[Checkpoint]:
        """The checkpoints that retention keeps, oldest first."""
        ref = self._ref()
        return [
            Checkpoint(read_manifest(self.store, digest)) for digest in (ref.value["live"] if ref else [])
        ]

    def weights(self, checkpoint: Checkpoint) -> Artifact:
        """The checkpoint's folder."""
        return artifact(self.store, checkpoint.digest, "weights")
