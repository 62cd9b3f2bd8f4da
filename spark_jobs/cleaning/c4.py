"""Rules of C4 for documents (Raffel et al. 2020, JMLR 21:140, section 2.2).

They count in the lines that the line rules keep, whether or not `measure.lines` has those edit the text.
"""

from __future__ import annotations

from spark_jobs.cleaning.rules import Text, rule

PAPER = "JMLR 21:140, 2.2"


@rule("c4.lorem_ipsum", PAPER)
def lorem_ipsum(text: Text) -> float:
    """Number of lines with "lorem ipsum"."""
    return text.c4.lorem_ipsum


@rule("c4.curly_brackets", PAPER)
def curly_brackets(text: Text) -> float:
    """Number of lines with a curly bracket."""
    return text.c4.curly_brackets


@rule("c4.sentences", PAPER)
def sentences(text: Text) -> float:
    """Number of sentences."""
    return text.c4.sentences
