"""The cells of the parity suite: one line a mesh. Each saves, and loads what any other saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A mesh."""

    name: str
    ranks: int
    parallel: dict[str, Any]
    """Fields of ParallelConfig."""
    dtype: str = "fp32"


CELLS = (
    Cell("z0", 1, {"zero_stage": 0}),
    Cell("z0 x2", 2, {"zero_stage": 0}),
    Cell("z1", 1, {"zero_stage": 1}),
    Cell("z1 x2", 2, {"zero_stage": 1}),
    Cell("z1 x3", 3, {"zero_stage": 1}),
    Cell("z1 x4", 4, {"zero_stage": 1}),
    Cell("z2 x2", 2, {"zero_stage": 2}),
    Cell("z2 x4", 4, {"zero_stage": 2}),
    Cell("z3", 1, {"zero_stage": 3}),
    Cell("z3 x2", 2, {"zero_stage": 3}),
    Cell("z3 x3", 3, {"zero_stage": 3}),
    Cell("z3 x4", 4, {"zero_stage": 3}),
    Cell("z1 x2 bf16", 2, {"zero_stage": 1}, "bf16"),
    Cell("z2 x2 bf16", 2, {"zero_stage": 2}, "bf16"),
    Cell("z3 x2 bf16", 2, {"zero_stage": 3}, "bf16"),
)
