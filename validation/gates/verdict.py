"""From judgements to a committed verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from validation.gates.report import render
from validation.gates.suite import Judgement


def verdict(
    context: Context,
    gate: str,
    judgements: Sequence[Judgement],
    tables: Mapping[str, Mapping[str, int]],
    notes: Sequence[str] = (),
) -> Mapping[str, Artifact]:
    """The outputs of a gate: `verdict` (canonical JSON; its facts say what failed, and what was not judged),
    and `report` (one HTML file)."""
    failed = [j for j in judgements if not j.passed and j.check.severity == "critical"]
    blocked = {j.check.column for j in failed}
    warned = [j for j in judgements if not j.passed and j.check.column not in blocked]
    facts = {
        "passed": not failed,
        "failed": [j.line() for j in failed],
        "warnings": [j.line() for j in warned],
        "notes": list(notes),
    }
    for note in notes:
        context.log(note)
    for judgement in judgements:
        context.log(f"{'pass' if judgement.passed else judgement.check.severity}: {judgement.line()}")
    observed = {j.check.column: None if j.observed != j.observed else j.observed for j in judgements}
    subjects = {name: artifact.output.digest for name, artifact in context.inputs.items()}
    page = render(gate, subjects, judgements, tables, notes)
    return {
        "verdict": context.blob("verdict.json", canonical(facts | {"observed": observed}), facts=facts),
        "report": context.blob("report.html", page),
    }
