"""A snapshot: this rank's file of a checkpoint, copied into host memory while the step loop waits.

    Layout   where each box of each fragment stands in the file: fixed for the run, so made once
    Slot     a mapped file laid out as safetensors; a snapshot is one copy a fragment and kind, nothing else

Two slots take turns, so that one good snapshot always stands. Their folder is in memory (/dev/shm) where it
fits: it outlives ranks and launcher, and the next attempt on the node starts from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training.checkpoint import boxes_of
from training.fragments import MASTER, Fragment
from training.layout import CheckpointError, Logical, Part

DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}
CHUNK = 1 << 18
"""Elements that are rounded at once, to stay in the cache."""
MEMCMP = ctypes.CDLL(None).memcmp  # twice as fast as torch.equal
MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
POPULATE_WRITE = 23
"""madvise(2), Linux 5.14: makes the pages now, so that no snapshot waits for them."""


def random_state() -> dict[str, Tensor]:
    """State of this rank's generators, uint8."""
    cuda = {"rng.cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"rng": torch.get_rng_state(), **cuda}


class Layout(NamedTuple):
    """Where everything stands in a rank's file."""

    header: bytes
    size: int
    """Of the file, in bytes."""
    ranges: dict[tuple[str, str], tuple[int, int]]
    """(Logical name, kind) -> bytes of the fragment; its boxes follow each other."""
    parts: list[Part]
    tensors: dict[str, Logical]
    """Those that this rank has a part of."""

    @classmethod
    def of(cls, held: Iterable[Fragment], file: str) -> Layout:
        """Lays out the file of a rank that saves these fragments."""
        about: dict[str, dict[str, object]] = {}
        ranges, parts, tensors, end = dict[tuple[str, str], tuple[int, int]](), list[Part](), {}, 0
        for fragment in sorted(held, key=_width, reverse=True):  # wide elements first: all are aligned
            found, name = boxes_of(fragment), fragment.name
            if not found:
                continue
            tensors[name] = Logical(shape=fragment.place.shape, kinds=tuple(fragment.state))
            parts += [
                Part(file=file, name=name, number=number, offset=offset, extent=extent)
                for number, (offset, extent) in enumerate(found)
            ]
            for kind, view in fragment.state.items():
                begin = end
                for part in parts[-len(found) :]:
                    stop = end + math.prod(part.extent) * view.element_size()
                    about[part.key(kind)] = _entry(view.dtype, part.extent, end, stop)
                    end = stop
                ranges[name, kind] = begin, end
        for key, state in random_state().items():
            about[key] = _entry(state.dtype, tuple(state.shape), end, end + state.nbytes)
            ranges[key, ""] = end, end + state.nbytes
            end += state.nbytes
        text = json.dumps(about, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors begin aligned
        header = len(text).to_bytes(8, "little") + text
        shifted = {key: (a + len(header), b + len(header)) for key, (a, b) in ranges.items()}
        return cls(header, len(header) + end, shifted, parts, tensors)


def _width(fragment: Fragment) -> int:
    return max(view.element_size() for view in fragment.state.values())


def _entry(dtype: torch.dtype, shape: tuple[int, ...], begin: int, end: int) -> dict[str, object]:
    return {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": (begin, end)}


class Slot:
    """A file of fixed size in memory, that snapshots are copied into."""

    def __init__(self, path: Path, layout: Layout) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._layout = path, layout
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(handle, 0, layout.size)
            os.ftruncate(handle, layout.size)
            self._map = mmap.mmap(handle, layout.size)
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):  # an older kernel: the first snapshot makes them
            self._map.madvise(POPULATE_WRITE)
        self._map[: len(layout.header)] = layout.header
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        if torch.cuda.is_available():  # pages that the GPU copies into by itself
            torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), layout.size, 0)

    def copy(self, held: Iterable[Fragment]) -> None:
        """Copies the state of now.

        Raises:
            CheckpointError: the model's copy is not the rounded master, so the mapping cannot be trusted.
        """
        checked: list[tuple[str, Tensor | bool]] = []
        for fragment in held:
            for kind, view in fragment.state.items():
                begin, end = self._layout.ranges[fragment.name, kind]
                self._bytes[begin:end].view(view.dtype).copy_(view, non_blocking=True)
            if MASTER in fragment.state:
                checked.append((fragment.name, _rounded(fragment.copy, fragment.state[MASTER])))
        for key, state in random_state().items():
            begin, end = self._layout.ranges[key, ""]
            self._bytes[begin:end].copy_(state)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if wrong := [name for name, same in checked if not same]:
            raise CheckpointError(
                f"{wrong[0]}: the model's copy differs from its master; nothing is saved",
                "this is a defect of the engine's mapping: report it",
            )


def _rounded(copy: Tensor, master: Tensor) -> Tensor | bool:
    """Whether a model's copy is the rounded master, bit by bit."""
    if copy.data_ptr() == master.data_ptr():
        return True
    if copy.is_cuda:  # not looked at until all is copied
        return (copy == master.to(copy)).all()
    step = len(copy) if copy.dtype == master.dtype else CHUNK
    for part, whole in zip(copy.split(step), master.split(step), strict=True):
        rounded = whole.to(copy.dtype)
        if MEMCMP(part.data_ptr(), rounded.data_ptr(), part.nbytes):
            return False
    return True
