"""The release policy: whether a candidate is better than the champion. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bloomery.config.base import Config
from bloomery.config.release import ReleaseConfig
from validation.release.waivers import Warned


class Eval(Config):
    """What the policy looks at of an eval."""

    digest: str
    """Of the eval's manifest."""
    bits_per_byte: float
    shards: str
    """Content digest of the shards whose held-out split it was measured on."""


class Decision(NamedTuple):
    """The verdict on a candidate, with its reasons."""

    promote: bool
    reasons: tuple[str, ...]


def decide(
    champion: Eval | None, candidate: Eval, policy: ReleaseConfig, warned: Sequence[Warned] = ()
) -> Decision:
    """Promotes the first candidate, and one that is better than the champion; never one beyond the bar, or
    whose dataset's gates warned of what nobody has waived."""
    if warned:
        return Decision(False, tuple(map(str, warned)))
    score, bar = candidate.bits_per_byte, policy.max_bits_per_byte
    if bar is not None and score > bar:
        return Decision(False, (f"{score:.4f} bits per byte is more than the policy's {bar:.4f}",))
    if champion is None:
        return Decision(True, (f"the first release: {score:.4f} bits per byte",))
    gain = champion.bits_per_byte - score
    better = gain > 0 and gain >= policy.min_improvement
    compared = (
        f"{score:.4f} bits per byte against the champion's {champion.bits_per_byte:.4f}: "
        f"{'better' if better else 'not better'} by {gain:.4f}, the policy asks for more than 0 and at least "
        f"{policy.min_improvement:.4f}"
    )
    notes = ("note: the two were measured on different held-out data",)
    return Decision(better, (compared, *(notes if champion.shards != candidate.shards else ())))
