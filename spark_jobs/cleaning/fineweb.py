"""Quality rules of FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6, "Developing additional
heuristic filters"). They see the text after the line rules, as there they follow C4's."""

from __future__ import annotations

import math

from spark_jobs.cleaning.rules import Text, ratio, rule

PAPER = "arXiv:2406.17557, 3.6"
SHORT = 30
"""Characters of a short line."""
TERMINAL_ASCII = ".!?"
TERMINAL_RANGES = """
    589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6
    17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D
    2047-2049 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F
    AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048
    110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C
    115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42
    11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16E98 1BC9F 1DA88
"""
"""Code points that end a sentence: Unicode 15's property Sentence_Terminal, and three Khmer signs."""


def code_points(ranges: str) -> frozenset[str]:
    """The characters of ranges of code points, as "589 61D-61F"."""
    ends = ([int(end, 16) for end in part.split("-")] for part in ranges.split())
    return frozenset(chr(point) for end in ends for point in range(end[0], end[-1] + 1))


TERMINAL = code_points(TERMINAL_RANGES) | frozenset(TERMINAL_ASCII)


@rule("fineweb.terminal_lines", PAPER, edited=True)
def terminal_lines(text: Text) -> float:
    """Fraction of lines that end in a mark that ends a sentence; nan without lines."""
    return ratio(sum(row[-1] in TERMINAL for row in text.rows), len(text.rows))


@rule("fineweb.short_lines", PAPER, edited=True)
def short_lines(text: Text) -> float:
    """Fraction of lines of up to 30 characters; nan without lines."""
    return ratio(sum(len(row) <= SHORT for row in text.rows), len(text.rows))


@rule("fineweb.duplicate_line_characters", PAPER, edited=True)
def duplicate_line_characters(text: Text) -> float:
    """Fraction of characters in lines that stand earlier in the text, too; nan without lines."""
    if not text.rows:
        return math.nan
    return text.rows.repeated.characters / (len(text.text) - text.text.count("\n"))


@rule("fineweb.newline_ratio", PAPER, edited=True)
def newline_ratio(text: Text) -> float:
    """Line ends per word; nan without words."""
    return ratio(text.text.count("\n"), text.word_count)
