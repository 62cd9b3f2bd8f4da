"""Checkpoints as boxes of logical tensors: each rank writes what it owns, any mesh reads what it needs.

    ZeRO fragment (flat range of a parameter) -> boxes (row-major rectangles) -> rank file, index

Every save checks that the model's copy equals the rounded master; every read counts that its boxes cover what
was asked. DeepSpeed's own save and load need pickle and are not used. Fragments: ZeRO-1 of DeepSpeed 0.19.8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.layout import CheckpointError, Index, Part, verify_file

MASTER, MOMENTS = "master", ("exp_avg", "exp_avg_sq")
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


class Fragment(NamedTuple):
    """The flat range of a parameter that this rank owns, and views of its state."""

    name: str
    shape: tuple[int, ...]
    start: int
    state: dict[str, Tensor]
    """Kind -> flat view, all of one length."""
    copy: Tensor
    """The model's own copy of the range, in the compute dtype."""


def flat_parameters(engine: Any) -> list[Tensor]:
    """The flat fp32 partitions that the inner optimizer steps, one a parameter group."""
    return [group["params"][0] for group in engine.optimizer.optimizer.param_groups]


def fragments(engine: Any) -> Iterator[Fragment]:
    """What this rank owns of each parameter of a ZeRO-1 engine whose optimizer has its state."""
    inner, flat = engine.optimizer.optimizer, flat_parameters(engine)
    for name, parameter in engine.module.named_parameters():
        owned = parameter._hp_mapping
        if owned is None:
            continue
        start, count = owned.lp_fragment_address.start, owned.lp_fragment_address.numel
        state = inner.state[flat[owned.param_group_index]]
        at = owned.hp_fragment_address
        moments = {kind: state[kind].narrow(0, at.start, at.numel) for kind in MOMENTS}
        copy = parameter.detach().view(-1)[start : start + count]
        yield Fragment(name, tuple(parameter.shape), start, {MASTER: owned.hp_fragment, **moments}, copy)


def create_optimizer_state(engine: Any, step: int) -> None:
    """Gives the optimizer the state that it otherwise makes at its first step, so that it can be filled."""
    inner = engine.optimizer.optimizer
    for flat in flat_parameters(engine):
        inner.state[flat].update(
            step=torch.tensor(float(step)), **{kind: torch.zeros_like(flat) for kind in MOMENTS}
        )


def write_rank(engine: Any, rank: int, path: Path) -> list[Part]:
    """Writes this rank's boxes and RNG to `path`; returns what the index says of them.

    Raises:
        CheckpointError: the model's copy is not the rounded master, so the mapping cannot be trusted.
    """
    tensors: dict[str, Tensor] = {}
    parts: list[Part] = []
    for fragment in fragments(engine):
        if not torch.equal(fragment.copy, fragment.state[MASTER].to(fragment.copy.dtype)):
            raise CheckpointError(
                f"{fragment.name}: the model's copy differs from its master on rank {rank}; nothing is saved",
                "this is a defect of the engine's mapping: report it",
            )
        stop = fragment.start + len(fragment.copy)
        for kind, flat in fragment.state.items():
            done = 0
            for number, (offset, extent) in enumerate(boxes(fragment.shape, fragment.start, stop)):
                key, volume = f"{fragment.name}/{kind}/{number}", math.prod(extent)
                tensors[key] = flat[done : done + volume].detach().view(extent).cpu().contiguous()
                parts.append(
                    Part(
                        file=path.name,
                        key=key,
                        name=fragment.name,
                        kind=kind,
                        offset=offset,
                        extent=extent,
                    )
                )
                done += volume
    tensors["rng"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, path)
    path.chmod(0o644)  # safetensors writes 0600
    return parts


def check_coverage(tensors: dict[str, tuple[int, ...]], parts: tuple[Part, ...]) -> None:
    """Refuses an index whose boxes do not add up to every tensor: a lost writer, or two of one box.

    Raises:
        CheckpointError: names the tensor.
    """
    written: dict[tuple[str, str], int] = {}
    for part in parts:
        written[part.name, part.kind] = written.get((part.name, part.kind), 0) + math.prod(part.extent)
    for name, shape in tensors.items():
        for kind in (MASTER, *MOMENTS):
            found = written.get((name, kind), 0)
            if found != math.prod(shape):
                raise CheckpointError(f"{name}/{kind}: {found} elements written, expected {math.prod(shape)}")


class Reader:
    """Reads boxes of a checkpoint's tensors, whatever mesh wrote them; hashes each file that it opens."""

    def __init__(self, folder: Path, digest: str) -> None:
        """Opens a folder.

        Args:
            folder: the checkpoint.
            digest: its content digest, which the index must bear.

        Raises:
            CheckpointError: the index is absent, damaged or another checkpoint's.
        """
        self.folder, self.index = folder, Index.read(folder)
        if self.index.digest != digest:
            raise CheckpointError(
                f"{folder / 'index.json'}: digest {self.index.digest}, expected {digest}",
                "resume from another checkpoint",
            )
        self._parts: dict[tuple[str, str], list[Part]] = {}
        for part in self.index.parts:
            self._parts.setdefault((part.name, part.kind), []).append(part)
        self._files: dict[str, Any] = {}

    def file(self, name: str) -> Any:
        """An open, verified file."""
        if name not in self._files:
            path = verify_file(self.folder, name, self.index.files)
            self._files[name] = safe_open(path, framework="pt")
        return self._files[name]

    def read(self, name: str, kind: str, offset: tuple[int, ...], extent: tuple[int, ...]) -> Tensor:
        """One box of a tensor, fp32: `extent`.

        Raises:
            CheckpointError: the checkpoint does not hold all of it.
        """
        out, covered = torch.empty(extent), 0
        for part in self._parts.get((name, kind), ()):
            low = [max(a, b) for a, b in zip(offset, part.offset, strict=True)]
            high = [
                min(a + n, b + m) for a, n, b, m in zip(offset, extent, part.offset, part.extent, strict=True)
            ]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, part.offset, strict=True))
            target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
            out[target] = self.file(part.file).get_slice(part.key)[source]
            covered += math.prod(b - a for a, b in zip(low, high, strict=True))
        if covered != out.numel():
            raise CheckpointError(
                f"{self.folder}: {name}/{kind} at {offset}: {covered} of {out.numel()} elements found",
                "resume from another checkpoint",
            )
        return out

    def weights(self) -> dict[str, Tensor]:
        """Every master weight, whole, fp32."""
        return {
            name: self.read(name, MASTER, (0,) * len(shape), shape)
            for name, shape in self.index.tensors.items()
        }


def fill(engine: Any, reader: Reader, rank: int, ranks: int) -> None:
    """Reads this rank's fragments, and its RNG if the mesh is the same, into a fresh engine.

    The model's copies are stale until `engine.optimizer.update_lp_params()`, which is collective.
    """
    create_optimizer_state(engine, reader.index.step)
    with torch.no_grad():
        for fragment in fragments(engine):
            stop = fragment.start + len(fragment.copy)
            for kind, flat in fragment.state.items():
                done = 0
                for offset, extent in boxes(fragment.shape, fragment.start, stop):
                    volume = math.prod(extent)
                    flat[done : done + volume].copy_(
                        reader.read(fragment.name, kind, offset, extent).view(-1)
                    )
                    done += volume
    if reader.index.ranks == ranks:
        file = reader.file(rank_file(rank))
        torch.set_rng_state(file.get_tensor("rng"))
        if torch.cuda.is_available() and "rng.cuda" in file.keys():  # noqa: SIM118  not a mapping
            torch.cuda.set_rng_state(file.get_tensor("rng.cuda"))


def rank_file(rank: int) -> str:
    """Name of a rank's file."""
    return f"rank{rank:05d}.safetensors"
