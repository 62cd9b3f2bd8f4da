"""How every benchmark speaks: one line a claim, the same as JSON, and exit 1 where one is short.

NAME ours=… peer=… ratio=… goal=… ok|short
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Claim:
    """A figure of ours, of a peer in the same run (or none), and what it should be.

    `ratio` is ours against the peer, or against the goal where there is none.
    """

    name: str
    ours: float
    goal: float
    peer: float | None = None
    less_is_better: bool = True

    @property
    def ratio(self) -> float:
        """Ours against the peer's, or against the goal."""
        return self.ours / (self.goal if self.peer is None else self.peer)

    @property
    def met(self) -> bool:
        """Whether the goal is met: of the figure, or of the ratio where there is a peer."""
        figure = self.ours if self.peer is None else self.ratio
        return figure <= self.goal if self.less_is_better else figure >= self.goal

    def line(self) -> str:
        """The claim as one line."""
        peer = "-" if self.peer is None else f"{self.peer:.4g}"
        verdict = "ok" if self.met else "short"
        figures = f"ours={self.ours:.4g} peer={peer} ratio={self.ratio:.3f} goal={self.goal:.4g}"
        return f"{self.name} {figures} {verdict}"


def report(benchmark: str, claims: list[Claim]) -> None:
    """Prints the claims, writes them to results/BENCHMARK.json, and exits 1 where one is short."""
    for claim in claims:
        print(claim.line())
    RESULTS.mkdir(exist_ok=True)
    rows = [asdict(claim) | {"ratio": claim.ratio, "met": claim.met} for claim in claims]
    (RESULTS / f"{benchmark}.json").write_text(json.dumps(rows, indent=1))
    sys.exit(0 if all(claim.met for claim in claims) else 1)
