"""What the gates of a candidate's dataset warned of, and whether a person has waived it."""

from __future__ import annotations

from typing import NamedTuple

from bloomery.artifacts.manifest import read_manifest
from bloomery.artifacts.refs import read_ref
from bloomery.artifacts.store import Store


class Warned(NamedTuple):
    """A verdict with warnings, without a waiver."""

    gate: str
    verdict: str
    """Digest of its manifest."""
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = "; ".join(self.warnings)
        remedy = f"bloomery waive {self.verdict} --reason ..., then clear the task `decide`"
        return f"gate {self.gate} warns of the dataset: {lines}; mend the data, or record a waiver: {remedy}"


def verdicts_of(shards: str) -> str:
    """Name of the ref that holds the verdicts on published shards, by their content digest."""
    return f"verdicts/{shards}"


def unwaived(store: Store, shards: str) -> list[Warned]:
    """Verdicts on a published dataset that carry warnings which nobody has waived."""
    ref = read_ref(store, verdicts_of(shards))
    found = []
    for gate, verdict in sorted(ref.value["gates"].items()) if ref else ():
        warnings = read_manifest(store, verdict).outputs["verdict"].facts["warnings"]
        if warnings and not read_ref(store, f"waivers/{verdict}"):
            found.append(Warned(gate, verdict, tuple(warnings)))
    return found
