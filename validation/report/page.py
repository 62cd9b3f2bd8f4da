"""The parts of a page: no script, no resource from elsewhere, and every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--line:#d8dee4;--faint:#59636e;--bar:#2f81c1;--before:#b35900;
--pass:#116329;--fail:#a40e26;--warn:#7d4e00}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--line:#30363d;--faint:#9198a1;
--bar:#4493f8;--before:#e3a008;--pass:#3fb950;--fail:#ff7b72;--warn:#d29922}}
body{font:15px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}small,.faint{color:var(--faint)}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td.wide{width:45%}
.pass{color:var(--pass)}.fail{color:var(--fail);font-weight:600}.warn{color:var(--warn);font-weight:600}
code{font-size:.85em}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;font-size:.85em}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
svg .bar{fill:var(--bar)}svg .axis{stroke:var(--line)}
svg .before{fill:none;stroke:var(--before);stroke-width:1.5}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(19rem,1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.9em}
"""


class Markup(str):
    """Text that is markup already; any other is escaped."""

    __slots__ = ()


Cell = str | int | float


def page(title: str, parts: Iterable[Markup]) -> bytes:
    """A whole page."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    return f"{head}<style>{_STYLE}</style>{''.join(parts)}".encode()


def heading(level: int, text: str) -> Markup:
    """A heading."""
    return Markup(f"<h{level}>{shown(text)}</h{level}>")


def paragraph(text: str) -> Markup:
    """A paragraph."""
    return Markup(f"<p>{shown(text)}</p>")


def span(kind: str, text: str) -> Markup:
    """A text with a class of the style: pass, warn, fail, faint."""
    return Markup(f'<span class="{kind}">{shown(text)}</span>')


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Markup:
    """A table; numbers are set to the right."""
    titles = f"<tr>{''.join(f'<th>{shown(title)}</th>' for title in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return Markup(f"<table>{titles}{body}</table>")


def counts(head: Sequence[str], values: Mapping[str, int], most: int = 30) -> Markup:
    """A table of counts with a bar each, the greatest first; those beyond `most` as one."""
    ordered = sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))
    if rest := ordered[most:]:
        ordered = [*ordered[:most], (f"{len(rest)} others", sum(count for _, count in rest))]
    greatest = max((count for _, count in ordered), default=0) or 1
    return table([*head, ""], ((name or "(none)", n, bar(n / greatest)) for name, n in ordered))


def bar(fraction: float) -> Markup:
    """A bar that fills a fraction of its cell."""
    width = f"{100 * fraction:.1f}"
    return Markup(
        f'<svg viewBox="0 0 100 5" preserveAspectRatio="none" style="height:.8rem">'
        f'<rect class="bar" width="{width}" height="5"/></svg>'
    )


def shown(value: Cell) -> str:
    """A value as a reader wants it: escaped; numbers with separators and up to four digits behind the
    point."""
    match value:
        case Markup():
            return value
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}"
        case _:
            return escape(value)


def _cell(value: Cell) -> str:
    wide = isinstance(value, Markup) and value.startswith("<svg")
    kind = ' class="wide"' if wide else ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{shown(value)}</td>"
