"""A verdict as one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from validation.gates.suite import Judgement
from validation.report.page import Markup, counts, heading, page, paragraph, shown, span, table


def render(
    gate: str,
    subjects: Mapping[str, str],
    judgements: Sequence[Judgement],
    tables: Mapping[str, Mapping[str, int]],
    notes: Sequence[str] = (),
) -> bytes:
    """The report of a verdict.

    Args:
        gate: name of the gate.
        subjects: what was judged, input name -> content digest.
        judgements: each check with what was observed.
        tables: title -> {name: count}, drawn as bars.
        notes: what was not judged, and why.
    """
    passed = all(j.passed or j.check.severity == "warning" for j in judgements)
    state = span("pass", "passed") if passed else span("fail", "did not pass")
    parts = [Markup(f"<h1>{shown(gate)}: {state}</h1>"), *map(paragraph, notes)]
    parts.append(table(("check", "observed", "allowed", "verdict"), map(_row, judgements)))
    for title, values in tables.items():
        parts += [heading(2, title), counts(("", ""), values)]
    parts.append(heading(2, "What was judged"))
    parts.append(table((), ((name, Markup(f"<code>{shown(d)}</code>")) for name, d in subjects.items())))
    return page(gate, parts)


def _row(judgement: Judgement) -> tuple[str | float, ...]:
    check = judgement.check
    kind = "pass" if judgement.passed else "warn" if check.severity == "warning" else "fail"
    low = [] if check.at_least is None else [f"≥ {check.at_least:g}"]
    high = [] if check.at_most is None else [f"≤ {check.at_most:g}"]
    name = Markup(f"{shown(check.column)}<br><small>{shown(check.why)}</small>")
    return name, judgement.observed, " ".join(low + high), span(kind, kind)
