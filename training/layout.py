"""What a checkpoint's folder holds. No torch here: launcher and writers read it too.

    <attempt>/checkpoint-<step>/
      rank00000.safetensors ...   boxes of fp32 masters and of the optimizer's state; the rank's RNG
      history.json                losses of every step so far
      index.json                  this module's Index: the state, where each box stands, each file's sha256

Everything but tensors is JSON, and nothing is pickled. The folder's digest follows from the files' hashes
alone, and they hold no clock, host or attempt: an undisturbed run and a resumed one end with the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.digests import file_digest, tree_digest
from bloomery.config.base import Config
from bloomery.config.training import TrainConfig
from bloomery.errors import BloomeryError
from bloomery.shards.overlay import Overlay

INDEX, HISTORY, STANDING = "index.json", "history.json", "standing.json"
EXCLUDED = "excluded"
"""Mark of a step that was passed over."""


Facts = dict[str, dict[str, Any]]
"""Section (code, config, dataset, graph) -> name -> value."""
SHOWN = 8
"""Most differences of a section that an error names."""


class CheckpointError(BloomeryError):
    """A checkpoint that is damaged or incomplete: another may be good."""


class RefusedError(BloomeryError):
    """A checkpoint that does not match the run: a person decides."""


class Logical(Config):
    """A tensor of the model, whatever mesh holds it."""

    shape: tuple[int, ...]
    kinds: tuple[str, ...]
    """What is saved of it: master, exp_avg, exp_avg_sq; or buffer."""


class Part(Config):
    """One box of a logical tensor: elements [offset, offset + extent) of each dimension, of every kind."""

    file: str
    name: str
    number: int
    """Of the box among those of the tensor in the file."""
    offset: tuple[int, ...]
    extent: tuple[int, ...]

    def key(self, kind: str) -> str:
        """Name of the box in its file."""
        return f"{self.name}/{kind}/{self.number}"


class HeldOut(Config):
    """A loss on the same held-out sequences."""

    step: int
    nats: float
    tokens: int
    bytes: int
    loss: float
    bits_per_byte: float


class History(Config):
    """What a run has measured so far; nothing of it depends on a clock."""

    loss: tuple[float | None, ...] = ()
    """Mean nats a token of each step's batch, before the step; None of one that was passed over."""
    grad_norm: tuple[float | None, ...] = ()
    """Global gradient norm of each step, before clipping; None of one that was passed over."""
    held_out: tuple[HeldOut, ...] = ()
    receipt: str = ""
    """Chained hash of all samples read."""
    marks: tuple[str, ...] = ()
    """What each step added to it: 24 hexadecimal digits; EXCLUDED of one that was passed over."""

    @property
    def losses(self) -> list[float]:
        """Of each step; nan of one that was passed over."""
        return [math.nan if loss is None else loss for loss in self.loss]


class Exclusion(Config):
    """A step whose batch the run was not trained on."""

    step: int
    """From 0: as `bloomery trace` counts."""
    why: str


class Allowed(Config):
    """A difference between a checkpoint and the run that went on from it, which a person allowed."""

    step: int
    what: str
    difference: str


class Index(Config):
    """A checkpoint's state, and where its tensors stand."""

    version: int = 3
    step: int
    """Steps done, those passed over among them: the schedule's position and the loader's."""
    updates: int
    """Updates of the weights: Adam's count."""
    samples: int
    tokens: int
    """Targets of the steps done."""
    before: str
    """Receipt before the last step."""
    receipt: str
    overlay: Overlay
    """What the run reads around, and what was taken down."""
    exclusions: tuple[Exclusion, ...] = ()
    """Steps that were passed over."""
    config: dict[str, Any]
    """Identity-bearing fields of the run's TrainConfig."""
    dataset: str
    tokenizer: str
    vocab_size: int
    code: dict[str, str]
    """What trained it: source file or library -> digest or version."""
    allowed: tuple[Allowed, ...] = ()
    """Differences that its run was allowed to go on across."""
    ranks: int
    tensors: dict[str, Logical]
    parts: tuple[Part, ...]
    files: dict[str, str]
    """Name -> sha256."""

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical(self.model_dump(mode="json"))

    @property
    def digest(self) -> str:
        """Content digest of the whole folder."""
        return tree_digest({**self.files, INDEX: sha256(self.to_bytes())})

    @property
    def train(self) -> TrainConfig:
        """The config that it was trained with."""
        return TrainConfig.model_validate(self.config)

    @classmethod
    def read(cls, folder: Path, digest: str) -> Self:
        """Reads the index of a checkpoint's folder, whose content digest is known.

        Raises:
            CheckpointError: it is absent, damaged or another checkpoint's.
        """
        path = folder / INDEX
        try:
            data = path.read_bytes()
            index = cls.model_validate_json(data)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}", "resume from another checkpoint") from error
        found = tree_digest({**index.files, INDEX: sha256(data)})
        if found != digest:
            raise CheckpointError(
                f"{path}: damaged, or another checkpoint's: digest {found}, expected {digest}",
                "resume from another checkpoint",
            )
        return index

    def facts(self) -> Facts:
        """What a run that goes on from here must have in common with it."""
        return {
            "code": self.code,
            "config": self.config,
            "dataset": dataset_facts(self.dataset, self.tokenizer, self.vocab_size),
            "graph": graph_facts(self.tensors),
        }

    def admit(self, here: Facts, allow: Collection[str]) -> tuple[Allowed, ...]:
        """Compares with a run that is to go on from here.

        Args:
            here: what of the run is known; only its sections are compared.
            allow: sections that may differ: code, config, dataset, graph.

        Returns:
            The differences that are allowed.

        Raises:
            RefusedError: names each difference that is not.
        """
        found, there = dict[str, str](), self.facts()
        for section, values in here.items():
            old = there[section]
            differ = [
                f"{name}: checkpoint {old.get(name)!r}, run {values.get(name)!r}"
                for name in sorted(old.keys() | values.keys())
                if old.get(name) != values.get(name)
            ]
            if differ:
                found[section] = "; ".join(
                    differ[:SHOWN] + ([f"and {len(differ) - SHOWN} more"] * (len(differ) > SHOWN))
                )
        if refused := [section for section in found if section not in allow]:
            raise RefusedError(
                f"the checkpoint of step {self.step} does not match: "
                + "; ".join(f"{section}: {found[section]}" for section in refused),
                "resume with what it was trained with, start a new run, or name the difference in "
                f"execution.parallelism.allow: [{', '.join(refused)}]",
            )
        return tuple(Allowed(step=self.step, what=what, difference=text) for what, text in found.items())


class Standing(Config):
    """A checkpoint that stands somewhere, from which a run may go on."""

    step: int
    digest: str
    """Of the folder's content: the index must bear it."""
    fence: int
    """Of the attempt that made it."""
    folder: Path = Path()
    """Where its files are; of one in an object store, where copies of them are kept."""
    place: str = ""
    """Its key in the store; none of one that stands only in a node's memory."""
    manifest: str = ""
    """Digest of its manifest in the journal."""
    excluded: tuple[int, ...] = ()
    """Steps that it passed over."""
    adopted: str = ""
    """Why it counts here though another run made it: prefix or fork (training/continuing.py)."""

    def trained_on(self, steps: Collection[int]) -> list[int]:
        """Which of some steps it was trained on."""
        return [step for step in steps if step < self.step and step not in self.excluded]


def dataset_facts(dataset: str, tokenizer: str, vocab_size: int) -> dict[str, Any]:
    """What a run reads."""
    return {"dataset": dataset, "tokenizer": tokenizer, "vocab_size": vocab_size}


def graph_facts(tensors: Mapping[str, Logical]) -> dict[str, Any]:
    """Names and shapes of a model."""
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


@cache
def code_facts() -> dict[str, str]:
    """What trains: 16 hexadecimal digits of each source file's sha256, and versions of the libraries."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    libraries = {name: version(name) for name in ("deepspeed", "torch")}
    return {f"training/{path.name}": file_digest(path)[:16] for path in sources} | libraries


def verify_file(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """The path of a checkpoint's file, its bytes checked.

    Raises:
        CheckpointError: names the file.
    """
    path = folder / name
    try:
        found = file_digest(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}", "resume from another checkpoint") from error
    if found != files[name]:
        raise CheckpointError(
            f"{path}: damaged: sha256 {found}, expected {files[name]}", "resume from another checkpoint"
        )
    return path


def read_history(folder: Path, index: Index) -> History:
    """The history that a checkpoint carries."""
    return History.model_validate_json(verify_file(folder, HISTORY, index.files).read_bytes())


def rank_file(rank: int) -> str:
    """Name of a rank's file."""
    return f"rank{rank:05d}.safetensors"
