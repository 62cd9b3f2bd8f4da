"""Checkpoints as boxes of logical tensors: each rank saves what it owns, any mesh reads what it needs.

    Fragment (flat range of a rank's piece) -> boxes (row-major rectangles) -> rank file, index
    index -> boxes that meet a fragment's -> copied into place, coverage counted

DeepSpeed's own save and load need pickle and are not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from bloomery.config.release import Weights
from training.engine import Engine
from training.fragments import AVERAGE, BUFFER, MASTER, Fragment, create_state, fragments, release
from training.layout import (
    INDEX,
    CheckpointError,
    Index,
    Logical,
    Part,
    RefusedError,
    rank_file,
    verify_file,
)

T = TypeVar("T")
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and extent in each dimension."""


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """The flat row-major range [start, stop) of a k-dimensional tensor as at most 2k - 1 boxes, in order."""
    if start >= stop:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        yield from _within(last, boxes(shape[1:], start - last * row, stop - last * row))
        return
    yield from _within(first - 1, boxes(shape[1:], start - (first - 1) * row, row if start % row else 0))
    if last > first:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    yield from _within(last, boxes(shape[1:], 0, stop - last * row))


def _within(row: int, found: Iterator[Box]) -> Iterator[Box]:
    for offset, extent in found:
        yield (row, *offset), (1, *extent)


def boxes_of(fragment: Fragment) -> list[Box]:
    """A fragment's boxes in the logical tensor, in the order of its elements."""
    return [
        (tuple(a + b for a, b in zip(fragment.place.offset, offset, strict=True)), extent)
        for offset, extent in boxes(fragment.extent, fragment.start, fragment.stop)
    ]


def check_coverage(tensors: dict[str, Logical], parts: tuple[Part, ...]) -> None:
    """Refuses parts that do not hold each element of every tensor once: a lost writer, or two of one box.

    Raises:
        CheckpointError: names the tensor.
    """
    found: dict[str, list[Part]] = {name: [] for name in tensors}
    for part in parts:
        found[part.name].append(part)
    for name, tensor in tensors.items():
        written, size = sum(math.prod(part.extent) for part in found[name]), math.prod(tensor.shape)
        if written != size:
            raise CheckpointError(f"{name}: {written} elements written, expected {size}")
        own = sorted(found[name], key=lambda part: part.offset)
        low = np.array([part.offset for part in own])
        high = low + np.array([part.extent for part in own])
        if (high > tensor.shape).any():
            raise CheckpointError(f"{name}: a box reaches beyond {tensor.shape}")
        ends = np.searchsorted(low[:, 0], high[:, 0])  # what begins in later rows cannot meet it
        for number, end in enumerate(ends.tolist()):
            meets = (low[number + 1 : end] < high[number]) & (low[number] < high[number + 1 : end])
            if meets.all(axis=1).any():
                raise CheckpointError(f"{name}: the box at {low[number].tolist()} is written twice")


class Reader:
    """Reads boxes of a checkpoint's tensors, whatever mesh wrote them."""

    def __init__(self, folder: Path, digest: str, again: Callable[[str], None] | None = None) -> None:
        """Opens a folder; each file is hashed when it is first read.

        Args:
            folder: the checkpoint.
            digest: its content digest, which the index must bear.
            again: brings a file to the folder, where it is absent or damaged.

        Raises:
            CheckpointError: the index is absent, damaged or another checkpoint's.
        """
        self.folder, self._again = folder, again
        self.index = self._retried(INDEX, lambda: Index.read(folder, digest))
        self._parts: dict[str, list[Part]] = {}
        for part in self.index.parts:
            self._parts.setdefault(part.name, []).append(part)
        self._files: dict[str, Any] = {}
        self._good: set[str] = set()

    def file(self, name: str) -> Any:
        """An open, verified file.

        Raises:
            CheckpointError: it is absent or damaged.
        """
        if name not in self._files:
            self._files[name] = safe_open(self.verified(name), framework="pt")
        return self._files[name]

    def verified(self, name: str) -> Path:
        """The path of a file whose bytes are checked, once.

        Raises:
            CheckpointError: it is absent or damaged.
        """
        if name not in self._good:
            self._retried(name, lambda: verify_file(self.folder, name, self.index.files))
            self._good.add(name)
        return self.folder / name

    def _retried(self, name: str, look: Callable[[], T]) -> T:
        try:
            return look()
        except CheckpointError:
            if self._again is None:
                raise
            self._again(name)
            return look()

    def read_into(self, out: Tensor, name: str, kind: str, offset: tuple[int, ...]) -> None:
        """Reads one box of a tensor into `out`, whose shape is its extent.

        Raises:
            RefusedError: the checkpoint is of an optimizer that keeps something else.
            CheckpointError: the checkpoint does not hold all of it.
        """
        if kind not in (kinds := self.index.tensors[name].kinds):
            raise RefusedError(
                f"{name}: the checkpoint of step {self.index.step} holds {', '.join(kinds)}, not {kind}",
                "set train.optimizer and train.ema as they were, or train.init_from.optimizer: false",
            )
        covered, extent = 0, tuple(out.shape)
        for part in self._parts.get(name, ()):
            low = [max(a, b) for a, b in zip(offset, part.offset, strict=True)]
            high = [
                min(a + n, b + m) for a, n, b, m in zip(offset, extent, part.offset, part.extent, strict=True)
            ]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, part.offset, strict=True))
            target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
            out[target].copy_(self.file(part.file).get_slice(part.key(kind))[source])
            covered += math.prod(b - a for a, b in zip(low, high, strict=True))
        if covered != out.numel():
            raise CheckpointError(
                f"{self.folder}: {name}/{kind} at {offset}: {covered} of {out.numel()} elements found",
                "resume from another checkpoint",
            )

    def read(self, name: str, kind: str) -> Tensor:
        """A whole tensor.

        Raises:
            CheckpointError: the checkpoint does not hold all of it.
        """
        tensor, first = self.index.tensors[name], self._parts[name][0]
        dtype = self.file(first.file).get_slice(first.key(kind))[:0].dtype
        out = torch.empty(tensor.shape, dtype=dtype)
        self.read_into(out, name, kind, (0,) * len(tensor.shape))
        return out

    def weights(self, of: Weights = "trained") -> Iterator[tuple[str, Tensor]]:
        """Every weight and buffer by name, whole, fp32, one at a time: as trained, or the average of them."""
        kind = {"trained": MASTER, "average": AVERAGE}[of]
        for name, tensor in self.index.tensors.items():
            yield name, self.read(name, kind if kind in tensor.kinds else BUFFER)


def fill(engine: Engine, reader: Reader, optimizer: bool = True) -> None:
    """Reads what this rank holds into an engine in place: weights, and by choice the optimizer's state.

    The model's copies are stale until `fragments.refresh`, which is collective: all ranks agree first that
    none has failed here.

    Raises:
        CheckpointError: a file is damaged, or an element is not held.
    """
    release(engine.deepspeed)
    create_state(engine.deepspeed, reader.index.updates if optimizer else 0)
    with torch.no_grad():
        for fragment in fragments(engine):
            for kind, flat in fragment.state.items():
                if not optimizer and kind not in (MASTER, BUFFER):
                    continue
                done = 0
                for offset, extent in boxes_of(fragment):
                    volume = math.prod(extent)
                    reader.read_into(flat[done : done + volume].view(extent), fragment.name, kind, offset)
                    done += volume
            if not optimizer and AVERAGE in fragment.state:
                fragment.state[AVERAGE].copy_(fragment.state[MASTER])


def fill_random(reader: Reader, rank: int, ranks: int) -> None:
    """Sets this rank's generators to what they were, if the mesh has as many ranks."""
    if reader.index.ranks == ranks:
        file = reader.file(rank_file(rank))
        torch.set_rng_state(file.get_tensor("rng"))
        if torch.cuda.is_available() and "rng.cuda" in file.keys():  # noqa: SIM118  not a mapping
            torch.cuda.set_rng_state(file.get_tensor("rng.cuda"))
