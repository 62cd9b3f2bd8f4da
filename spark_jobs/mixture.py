"""Mixture: how many tokens of each source a training run takes, and how often it repeats them.

    weights, caps, budget x tokens that the shards hold -> {source: weight, tokens, held, epochs, max_epochs}

A plan that no data can fill is refused with the numbers that would be possible: Muennighoff et al. 2023
(arXiv:2305.16264) find repeating up to four times nearly as good as new data, and little gained beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import MixtureConfig, MixtureSource
from bloomery.errors import BloomeryError


class MixtureError(BloomeryError):
    """A mixture that the data cannot fill, or that does not name the sources that there are."""


class Share(NamedTuple):
    """What a run takes of a source."""

    weight: float
    """Fraction of the run's tokens."""
    tokens: int
    held: int
    """Training tokens that the shards hold."""
    epochs: float
    max_epochs: float
    """Most times it may be repeated, however long the run is."""


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `mixture`.

    Raises:
        MixtureError: an impossible plan.
    """
    shares = plan(context.config, context.inputs["shards"].output.facts["sources"])
    for source, share in shares.items():
        context.log(
            f"mixture: {source}: {share.tokens:,} tokens ({share.weight:.1%}), {share.epochs:.2f} epochs "
            f"of its {share.held:,}"
        )
    facts = {source: share._asdict() for source, share in shares.items()}
    total = sum(share.tokens for share in shares.values())
    return {"plan": context.blob("plan", canonical(facts), tokens=total, facts={"sources": facts})}


def plan(config: MixtureConfig, held: Mapping[str, int]) -> dict[str, Share]:
    """Tokens of each source, in all exactly the budget.

    Args:
        config: weights, epoch caps, budget. Without weights each source has its share of the tokens, and
            without a budget every token is taken once.
        held: training tokens of each source.

    Raises:
        MixtureError: a source that is unknown, left out or empty, or would be repeated more than allowed.
    """
    chosen = config.sources or tuple(
        MixtureSource(name=name, weight=float(tokens), max_epochs=config.max_epochs)
        for name, tokens in sorted(held.items())
        if tokens
    )
    _check_names(chosen, held, bool(config.sources))
    whole = sum(source.weight for source in chosen)
    weights = {source.name: source.weight / whole for source in chosen}
    caps = {s.name: config.max_epochs if s.max_epochs is None else s.max_epochs for s in chosen}
    possible = min(int(caps[name] * held[name] / weight) for name, weight in weights.items() if weight)
    budget = config.tokens or (min(possible, sum(held.values())) if config.sources else sum(held.values()))
    tokens = _exact(weights, budget)
    over = [name for name, count in tokens.items() if count > caps[name] * held[name] + 1]
    if over:
        lines = [
            f"{name}: {weights[name]:.1%} of {budget:,} tokens are {tokens[name]:,}, "
            f"{tokens[name] / held[name]:.2f} epochs of its {held[name]:,}, max_epochs {caps[name]:g}"
            for name in over
        ]
        raise MixtureError(
            "the mixture is impossible: " + "; ".join(lines),
            f"lower corpus.mixture.tokens to {possible:,}, lower the weight, raise max_epochs, or add data",
        )
    return {
        name: Share(weights[name], count, held[name], count / held[name], caps[name])
        for name, count in tokens.items()
    }


def _check_names(chosen: tuple[MixtureSource, ...], held: Mapping[str, int], named: bool) -> None:
    names = {source.name for source in chosen}
    if unknown := sorted(names - held.keys()):
        raise MixtureError(
            f"corpus.mixture names {', '.join(unknown)}, of which no token is in the shards",
            f"the shards hold {', '.join(f'{name} ({tokens:,})' for name, tokens in sorted(held.items()))}",
        )
    if named and (missing := sorted(held.keys() - names)):
        raise MixtureError(
            f"corpus.mixture has no weight for {', '.join(missing)}", "give it one; 0 leaves the source out"
        )
    if not any(source.weight for source in chosen):
        raise MixtureError("corpus.mixture gives every source the weight 0", "give one of them a weight")


def _exact(weights: Mapping[str, float], budget: int) -> dict[str, int]:
    """Whole tokens by weight that add up to the budget: what is left goes to the largest remainders."""
    exact = {name: weight * budget for name, weight in weights.items()}
    tokens = {name: int(value) for name, value in exact.items()}
    left = budget - sum(tokens.values())
    by_remainder = sorted(exact, key=lambda name: (tokens[name] - exact[name], name))
    for name in by_remainder[:left]:
        tokens[name] += 1
    return tokens
