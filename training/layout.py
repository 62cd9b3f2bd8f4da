"""What a checkpoint's folder holds. No torch here: the launcher reads it too.

    <attempt>/checkpoint-<step>/
      rank00000.safetensors ...   boxes of fp32 masters and both Adam moments; the rank's RNG
      history.json                losses of every step so far
      index.json                  this module's Index: the state, where each box stands, each file's sha256

Everything but tensors is JSON, and nothing is pickled. The folder's digest follows from the files' hashes
alone, and they hold no clock, host or attempt: an undisturbed run and a resumed one end with the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.digests import file_digest, tree_digest
from bloomery.config.base import Config, identity
from bloomery.config.training import TrainConfig
from bloomery.errors import BloomeryError
from bloomery.shards.overlay import Overlay

INDEX, HISTORY = "index.json", "history.json"


class CheckpointError(BloomeryError):
    """A checkpoint that is damaged, incomplete, or of another run."""


class Part(Config):
    """One box of a logical tensor: elements [offset, offset + extent) of each dimension."""

    file: str
    key: str
    name: str
    kind: str
    """master, exp_avg or exp_avg_sq."""
    offset: tuple[int, ...]
    extent: tuple[int, ...]


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

    loss: tuple[float, ...] = ()
    """Mean nats a token of each step's batch, before the step."""
    grad_norm: tuple[float, ...] = ()
    """Global gradient norm of each step, before clipping."""
    held_out: tuple[HeldOut, ...] = ()
    receipt: str = ""
    """Chained hash of all samples read."""
    marks: tuple[str, ...] = ()
    """What each step added to it: 24 hexadecimal digits."""


class Index(Config):
    """A checkpoint's state, and where its tensors stand."""

    version: int = 2
    step: int
    """Optimizer steps done: also Adam's count, the schedule's position and the loader's."""
    samples: int
    tokens: int
    """Targets of the steps done."""
    before: str
    """Receipt before the last step."""
    receipt: str
    overlay: Overlay
    """What the run reads around, and what was taken down."""
    config: dict[str, Any]
    """Identity-bearing fields of the run's TrainConfig."""
    dataset: str
    tokenizer: str
    vocab_size: int
    ranks: int
    tensors: dict[str, tuple[int, ...]]
    """Name -> global shape."""
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
    def read(cls, folder: Path) -> Self:
        """Reads the index of a checkpoint's folder.

        Raises:
            CheckpointError: it is absent or damaged.
        """
        path = folder / INDEX
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}", "resume from another checkpoint") from error

    def check(self, config: TrainConfig, dataset: str, tokenizer: str, vocab_size: int) -> None:
        """Refuses to resume another run.

        Raises:
            CheckpointError: names what differs.
        """
        here = {"dataset": dataset, "tokenizer": tokenizer, "vocab_size": vocab_size, **identity(config)}
        there = {
            "dataset": self.dataset,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            **self.config,
        }
        differ = [
            f"{name}: checkpoint {there.get(name)!r}, run {here.get(name)!r}"
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
        if differ:
            raise CheckpointError(
                f"the checkpoint of step {self.step} is of another run: {'; '.join(differ)}",
                "resume with the config and data that it was trained with, or start a new run",
            )


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
