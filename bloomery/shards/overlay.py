"""What a run reads otherwise than planned: around damaged tokens, and without documents that were taken down.

quarantine  tokens that no copy holds right: from a step on, each sample that holds any of them is another,
            the next of the source's order beyond what the run reads, so that every other slot stays
tombstone   a document's tokens are read as separators, and none of them is a target

Both are part of the run's state, each with its step, so a replay reads at each step what the run read.
"""

from __future__ import annotations

from bloomery.config.base import Config


class Damage(Config):
    """Tokens [start, stop) of a source's training stream that cannot be read."""

    source: str
    start: int
    stop: int
    what: str
    """File, what was found, and what was expected."""


class Quarantine(Config):
    """Damaged tokens that a run reads around."""

    source: str
    start: int
    stop: int
    since: int
    """First step that reads around them."""
    reserve: int
    """First position of the source's order that stands in for the lost ones."""


class Tombstone(Config):
    """A document that is never emitted again."""

    source: str
    document: str
    """32 hexadecimal digits."""
    start: int
    stop: int
    """Its tokens in the source's training stream."""
    since: int
    """First step without it."""


class Overlay(Config):
    """All of them, in the order of their steps."""

    quarantined: tuple[Quarantine, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
