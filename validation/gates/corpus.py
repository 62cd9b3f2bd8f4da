"""The gate on a snapshot: is it fit to train on, and how far is it from the last published?

    profile (and that of the published snapshot) -> figures -> the suite -> verdict

No engine: the stage `profile` has counted all that is asked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.gates import CorpusGateConfig, Limits
from spark_jobs.profiling import CorpusProfile
from spark_jobs.statistics import lower_edge
from validation.gates.drift import drift, fates
from validation.gates.suite import Check, Judgement, judge
from validation.gates.verdict import verdict

SHORT = 128
"""Characters below which a document is short: a bin of the histogram begins there."""
NO_BASELINE = "no baseline: nothing is published under this name, so drift was not judged"


class Figure(NamedTuple):
    """A figure of the profile and what the policy allows."""

    name: str
    value: float
    why: str
    limits: Limits = Limits()
    at_least: float | None = None


def body(context: Context) -> Mapping[str, Artifact]:
    """Body of the gate `corpus_gate`."""
    profile = CorpusProfile.from_bytes(context.inputs["profile"].read())
    published = context.inputs.get("baseline")
    baseline = CorpusProfile.from_bytes(published.read()) if published else None
    judgements = judge_profile(profile, baseline, context.config)
    tables = {
        "Records by what became of them": fates(profile),
        "Survivors by source": {name: origin.documents for name, origin in profile.sources.items()},
        "Survivors by language": profile.languages,
    }
    return verdict(context, "corpus_gate", judgements, tables, [] if baseline else [NO_BASELINE])


def judge_profile(
    profile: CorpusProfile, baseline: CorpusProfile | None, policy: CorpusGateConfig
) -> list[Judgement]:
    """What the policy says of a profile, and of its drift where there is a baseline."""
    import pandas as pd

    found = figures(profile, baseline, policy)
    frame = pd.DataFrame([{figure.name: figure.value for figure in found}])
    return judge(frame, [check for figure in found for check in checks(figure)])


def figures(profile: CorpusProfile, baseline: CorpusProfile | None, policy: CorpusGateConfig) -> list[Figure]:
    """All that is judged of a profile."""
    drifts = drift_figures(profile, baseline, policy) if baseline else []
    return [*own_figures(profile, policy), *drifts]


def checks(figure: Figure) -> Iterator[Check]:
    """What the suite asks of a figure: the bound that blocks, then the one that warns."""
    if figure.at_least is not None or figure.limits.block is not None:
        yield Check(figure.name, figure.why, figure.at_least, figure.limits.block)
    if figure.limits.warn is not None:
        yield Check(figure.name, figure.why, at_most=figure.limits.warn, severity="warning")


def own_figures(profile: CorpusProfile, policy: CorpusGateConfig) -> list[Figure]:
    """Figures of a profile alone."""
    none, survivors, records = Limits(block=0), profile.documents, profile.records
    kept, quarantined = profile.with_status("kept"), profile.with_status("quarantined")
    held_out, no_language = profile.splits.get("held_out", 0), profile.languages.get("", 0)
    characters = profile.histograms.get("characters", ())
    short = sum(count for bin_, count in characters if lower_edge(bin_) < SHORT)
    pii, items = _most(profile.pii), _most(profile.items)
    return [
        Figure("documents", survivors, "surviving documents", at_least=policy.min_documents),
        Figure("held_out", held_out, "held-out documents", at_least=policy.min_held_out),
        Figure("unaccounted", abs(survivors - kept), "survivors more or less than the ledger says", none),
        Figure("empty", profile.empty, "survivors without text", none),
        Figure("repeated_ids", profile.repeated_ids, "survivors that share an id", none),
        Figure("contaminated", profile.contaminated, f"hold an eval item{items}", policy.contaminated),
        part("repeated", profile.repeated_contents, survivors, "repeat another's text", policy.repeated),
        part("short", short, survivors, f"have fewer than {SHORT} characters", policy.short),
        part("no_language", no_language, kept, "have no language", policy.no_language),
        part("mojibake", profile.mojibake, survivors, "show a wrong encoding", policy.mojibake),
        part("pii", profile.pii[""], survivors, f"hold personal data{pii}", policy.pii),
        part("quarantined", quarantined, records, "are quarantined", policy.quarantined, "records"),
        part("dropped", records - kept - quarantined, records, "are dropped", policy.dropped, "records"),
    ]


def part(name: str, some: int, whole: int, why: str, limits: Limits, what: str = "survivors") -> Figure:
    """A fraction of survivors or records; nan, which no check passes, of nothing."""
    return Figure(name, some / whole if whole else math.nan, f"of {what} {why}", limits)


def drift_figures(profile: CorpusProfile, baseline: CorpusProfile, policy: CorpusGateConfig) -> list[Figure]:
    """Figures of a profile against that of the last published snapshot."""
    found, bound = drift(profile, baseline), policy.drift
    psi, nulls, gone = _most(found.psi), _most(found.nulls), ", ".join(found.vanished)
    return [
        Figure("drift_documents", found.documents, "relative change of documents", bound.documents),
        Figure("drift_bytes", found.bytes, "relative change of the bytes of text", bound.bytes),
        Figure("drift_psi", _greatest(found.psi), f"greatest PSI of a column{psi}", bound.psi),
        Figure("drift_sources", found.sources, "bits between the mixes of sources", bound.sources),
        Figure("drift_languages", found.languages, "bits between the mixes of languages", bound.languages),
        Figure("drift_rules", found.rules, "bits between what became of records", bound.rules),
        Figure("drift_nulls", _greatest(found.nulls), f"greatest change of nulls{nulls}", bound.nulls),
        Figure("drift_vanished", len(found.vanished), f"sources are gone: {gone or 'none'}", bound.vanished),
    ]


def _greatest(values: Mapping[str, float]) -> float:
    return max(values.values(), default=0.0)


def _most(values: Mapping[str, float]) -> str:
    """Names what a figure is greatest for."""
    named = {name: value for name, value in values.items() if name and value}
    return f" ({max(sorted(named), key=named.__getitem__)})" if named else ""
