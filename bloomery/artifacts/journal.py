"""A training run as a journal: each checkpoint names its parent, and refs/runs/<key>/head moves by
compare-and-swap.

    checkpoint 50 <- checkpoint 100 <- checkpoint 150 <- head {digest, step, fence, live, abandoned}

Only a holder of the run's newest fencing number moves the head: a group that lost its place cannot publish.
What retention drops leaves the live list only; its bytes are collected with whatever no ref reaches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

    @property
    def fence(self) -> int:
        """Fencing number of the attempt that published it."""
        return int(self.manifest.spec.config["fence"])

    @property
    def adopted(self) -> str:
        """Why a checkpoint that another run made counts in this one; empty of the run's own."""
        return str(self.manifest.spec.config.get("adopted", ""))

    @property
    def excluded(self) -> list[int]:
        """Steps that it passed over."""
        return list(self.manifest.outputs["weights"].facts.get("excluded", ()))

    @property
    def score(self) -> float | None:
        """Held-out loss at its step; None if it was not measured there."""
        return self.manifest.outputs["weights"].facts.get("held_out")


class Retention(NamedTuple):
    """Which checkpoints stay live."""

    last: int
    """The newest so many: at least 1."""
    every: int | None = None
    """Those of multiples of so many steps, too."""
    best: int = 0
    """The so many with the least held-out loss, too."""

    def kept(self, live: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those of `live`, oldest first, that stay."""
        scored = sorted((c.score, -c.step, c.digest) for c in live if c.score is not None)
        best = {digest for _, _, digest in scored[: self.best]}
        newest = {checkpoint.digest for checkpoint in live[-self.last :]}
        every = {c.digest for c in live if self.every and c.step % self.every == 0}
        return [checkpoint for checkpoint in live if checkpoint.digest in newest | every | best]


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
                "began": time.time(),
                **(ref.value if ref else {}),
                **(about or {}),
                "fence": fence,
            }
            try:
                move_ref(self.store, f"runs/{self.run}/head", value, ref)
            except BloomeryError:
                continue
            return self.head()

    def append(
        self,
        step: int,
        weights: Artifact,
        fence: int,
        receipt: str,
        keep: Retention,
        adopted: tuple[str, str] | None = None,
    ) -> Checkpoint:
        """Commits a checkpoint and moves the head to it; those that `keep` keeps stay live.

        `adopted` is, of one that another run made, the digest of its manifest there, and why it counts here.

        Raises:
            FencedError: a later attempt holds the run; nothing was published.
        """
        ref = self._held(fence)
        parent, how = adopted or (ref.value["digest"], "")
        config = {"run": self.run, "step": step, "parent": parent, "receipt": receipt, "fence": fence}
        config |= {"adopted": how} if how else {}
        spec = Spec(stage="checkpoint", version=1, config=config, inputs={}, libraries={})
        sources = {"parent": parent} if parent else {}
        made = commit(self.store, spec, {"weights": weights}, sources, f"{fence:06d}-{step:09d}", time.time())
        live = keep.kept([*self.live(), Checkpoint(made.manifest)])
        self._move(ref, fence, digest=made.digest, step=step, live=[checkpoint.digest for checkpoint in live])
        return Checkpoint(made.manifest)

    def rewind(self, to: Checkpoint | None, fence: int, why: str) -> None:
        """Moves the head back, None to the start; what lay beyond is abandoned, and never resumed from or
        evaluated again.

        Raises:
            FencedError: a later attempt holds the run.
        """
        ref = self._held(fence)
        live = ref.value["live"]
        stays = live[: live.index(to.digest) + 1] if to else []
        beyond = [{"digest": digest, "why": why} for digest in live[len(stays) :]]
        abandoned = [*ref.value.get("abandoned", []), *beyond]
        head = {"digest": to.digest, "step": to.step} if to else {"digest": "", "step": 0}
        self._move(ref, fence, **head, live=stays, abandoned=abandoned)

    def exclude(self, steps: Mapping[int, str], fence: int) -> None:
        """Records that the run goes back, and passes over the batches of steps, each with its reason.

        Raises:
            FencedError: a later attempt holds the run.
        """
        ref = self._held(fence)
        known = {str(step): why for step, why in steps.items()} | ref.value.get("excluded", {})
        self._move(ref, fence, excluded=known, rewinds=ref.value.get("rewinds", 0) + 1)

    def excluded(self) -> dict[int, str]:
        """Steps whose batches are passed over, each with its reason."""
        ref = self._ref()
        return {int(step): why for step, why in (ref.value.get("excluded", {}) if ref else {}).items()}

    def began(self) -> float:
        """When the run was first opened, Unix time."""
        ref = self._ref()
        return ref.value["began"] if ref else time.time()

    def rewinds(self) -> int:
        """How often the run went back."""
        ref = self._ref()
        return ref.value.get("rewinds", 0) if ref else 0

    def _held(self, fence: int) -> Ref:
        ref = self._ref()
        if ref is None or ref.value["fence"] != fence:
            raise FencedError(
                f"run {self.run[:12]}: fence {fence} is not the run's any more; nothing is published"
            )
        return ref

    def _move(self, ref: Ref, fence: int, **value: Any) -> None:
        try:
            move_ref(self.store, f"runs/{self.run}/head", ref.value | value, ref)
        except BloomeryError as error:
            raise FencedError(f"run {self.run[:12]}: the head moved under fence {fence}") from error

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
