"""Histograms as inline SVG: bars of this snapshot, and a line of the one before where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from spark_jobs.statistics import OCTAVE, ZERO, lower_edge
from validation.report.page import Markup, shown

WIDTH, HEIGHT, FOOT = 320, 120, 16
"""Units of the picture, and of the room for its scale."""


def histogram(title: str, now: Mapping[int, int], before: Mapping[int, int] | None = None) -> Markup:
    """A histogram over bins of spark_jobs.statistics, as fractions; the scale is logarithmic.

    Args:
        title: what is counted.
        now: bin -> count.
        before: the same of the published snapshot.
    """
    found = sorted(bin_ for bin_ in {*now, *(before or {})} if bin_ != ZERO)
    places = _places(found)
    total, earlier = sum(now.values()) or 1, sum((before or {}).values()) or 1
    heights = {bin_: now.get(bin_, 0) / total for bin_ in places}
    others = {bin_: before.get(bin_, 0) / earlier for bin_ in places} if before else {}
    greatest = max([*heights.values(), *others.values(), 1e-9])
    width = WIDTH / max(1, len(places))
    bars = "".join(
        f'<rect class="bar" x="{places[bin_] * width:.1f}" y="{_y(height, greatest):.1f}" '
        f'width="{max(0.5, width - 0.6):.1f}" height="{HEIGHT - _y(height, greatest):.1f}"/>'
        for bin_, height in heights.items()
        if height
    )
    steps = "".join(
        f"{'M' if not number else 'L'}{number * width:.1f} {_y(height, greatest):.1f}h{width:.1f}"
        for number, height in enumerate(others.values())
    )
    line = f'<path class="before" d="{steps}"/>' if steps else ""
    return Markup(
        f'<figure><figcaption>{shown(title)}</figcaption><svg role="img" aria-label="{shown(title)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT + FOOT}">{bars}{line}<path class="axis" d="M0 {HEIGHT}H{WIDTH}"/>'
        f"{_scale(found, places, width)}</svg></figure>"
    )


def bits_histogram(title: str, now: Mapping[int, int]) -> Markup:
    """A histogram of whole numbers by how many bits they have: bin b counts 2^(b-1) to 2^b - 1."""
    return histogram(title, {(bits - 1) * OCTAVE: count for bits, count in now.items()})


def _places(found: list[int]) -> dict[int, int]:
    """Bin -> its place from the left: those of the least and greatest value and all between, and ZERO first.

    Where every bin is a power of two, only those have a place.
    """
    step = OCTAVE if all(bin_ % OCTAVE == 0 for bin_ in found) else 1
    between = range(found[0], found[-1] + 1, step) if found else ()
    return {bin_: place for place, bin_ in enumerate([ZERO, *between])}


def _y(height: float, greatest: float) -> float:
    return HEIGHT - height / greatest * (HEIGHT - 4)


def _scale(found: list[int], places: Mapping[int, int], width: float) -> str:
    """0, and up to five powers of two, below the axis."""
    marks = [(places[ZERO], "0")]
    powers = [bin_ for bin_ in places if bin_ != ZERO and bin_ % OCTAVE == 0]
    every = max(1, -(-len(powers) // 5))
    marks += [(places[bin_], _power(bin_)) for bin_ in powers[::every]]
    if not powers and found:
        marks.append((places[found[0]], f"{lower_edge(found[0]):.2g}"))
    y = HEIGHT + FOOT - 4
    return "".join(f'<text x="{place * width + 1:.1f}" y="{y}">{text}</text>' for place, text in marks)


def _power(bin_: int) -> str:
    value = lower_edge(bin_)
    exponent = round(log2(value))
    if value >= 1:
        units = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
        unit = min(exponent // 10, len(units) - 1)
        return f"{2 ** (exponent - 10 * unit)}{units[unit]}"
    return f"{value:.2g}"
