"""A verdict as one HTML file that opens offline."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from validation.gates.suite import Judgement

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1{font-size:1.4rem}table{border-collapse:collapse;width:100%;margin:1rem 0}
td,th{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #d8dee4;vertical-align:top}
.pass{color:#116329}.fail{color:#a40e26;font-weight:600}.warn{color:#7d4e00;font-weight:600}
.bar{background:#dbe9f4;height:.8rem}code{font-size:.85em}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}td,th{border-color:#30363d}
.pass{color:#3fb950}.fail{color:#ff7b72}.warn{color:#d29922}.bar{background:#1f6feb}}
"""


def render(
    gate: str,
    subjects: Mapping[str, str],
    judgements: Sequence[Judgement],
    tables: Mapping[str, Mapping[str, Any]],
) -> bytes:
    """The report of a verdict.

    Args:
        gate: name of the gate.
        subjects: what was judged, input name -> content digest.
        judgements: each check with what was observed.
        tables: title -> {name: count}, drawn as bars.
    """
    passed = all(j.passed or j.check.severity == "warning" for j in judgements)
    state = '<span class="pass">passed</span>' if passed else '<span class="fail">did not pass</span>'
    rows = "".join(_row(j) for j in judgements)
    digests = "".join(
        f"<li>{html.escape(k)}: <code>{html.escape(v)}</code></li>" for k, v in subjects.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(gate)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(gate)}: {state}</h1><ul>{digests}</ul>"
        f"<table><tr><th>check</th><th>observed</th><th>allowed</th><th>verdict</th></tr>{rows}</table>"
        + "".join(_bars(title, counts) for title, counts in tables.items())
    ).encode()


def _row(judgement: Judgement) -> str:
    check = judgement.check
    kind = "pass" if judgement.passed else "warn" if check.severity == "warning" else "fail"
    low = "" if check.at_least is None else f"&ge; {check.at_least:g} "
    high = "" if check.at_most is None else f"&le; {check.at_most:g}"
    observed = f"{judgement.observed:.6g}" if isinstance(judgement.observed, float) else judgement.observed
    return (
        f"<tr><td>{html.escape(check.column)}<br><small>{html.escape(check.why)}</small></td>"
        f'<td>{html.escape(str(observed))}</td><td>{low}{high}</td><td class="{kind}">{kind}</td></tr>'
    )


def _bars(title: str, counts: Mapping[str, Any]) -> str:
    most = max(counts.values(), default=0) or 1
    rows = "".join(
        f'<tr><td>{html.escape(str(name))}</td><td>{count:,}</td><td style="width:50%"><div class="bar" '
        f'style="width:{100 * count / most:.1f}%"></div></td></tr>'
        for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    return f"<h2>{html.escape(title)}</h2><table>{rows}</table>"
