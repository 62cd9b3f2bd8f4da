"""The report of a dataset: where its documents come from, what became of the others, how it is told from the
last published one. One HTML file, from the profile and the facts of the shards alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby

from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from spark_jobs.profiling import CorpusProfile, Sample
from spark_jobs.statistics import ZERO
from validation.gates.drift import Drift, drift, fates
from validation.report.page import Cell, Markup, bar, counts, heading, page, paragraph, shown, span, table
from validation.report.plots import bits_histogram, histogram

STEPS = ("ingest", "clean", "dedup", "decontaminate")
"""Stages that may not keep a record, in their order."""
LEGEND = "Fractions of survivors over a logarithmic scale. Bars: this snapshot; line: the last published one."
TEXTS = {
    "bytes": "Bytes of a document",
    "words": "Words of a document",
    "characters_per_word": "Characters a word",
}


def body(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `report`."""
    profile = CorpusProfile.from_bytes(context.inputs["profile"].read())
    published = context.inputs.get("baseline")
    baseline = CorpusProfile.from_bytes(published.read()) if published else None
    verdicts = {
        name: json.loads(context.inputs[f"{name}_verdict"].read()) for name in ("corpus_gate", "shard_gate")
    }
    return {
        "report": context.blob(
            "report.html", render(profile, context.inputs["shards"].output, verdicts, baseline)
        )
    }


def render(
    profile: CorpusProfile,
    shards: Output,
    verdicts: Mapping[str, Mapping[str, list[str]]],
    baseline: CorpusProfile | None = None,
) -> bytes:
    """The page.

    Args:
        profile: of the snapshot.
        shards: of the stage `shard`, with its facts.
        verdicts: gate -> its verdict.
        baseline: profile of the last published snapshot.
    """
    return page("Dataset report", _parts(profile, shards, verdicts, baseline))


def _parts(
    profile: CorpusProfile,
    shards: Output,
    verdicts: Mapping[str, Mapping[str, list[str]]],
    baseline: CorpusProfile | None,
) -> Iterator[Markup]:
    before = {name: dict(found) for name, found in baseline.histograms.items()} if baseline else {}
    yield heading(1, "Dataset report")
    yield table((), _summary(profile, shards))
    yield heading(2, "Gates")
    yield from map(_verdict, verdicts, verdicts.values())
    yield heading(2, "Funnel")
    yield table(("", "records", ""), _funnel(profile, shards))
    yield heading(2, "Why records were not kept")
    yield counts(("rule", "records"), {name: n for name, n in fates(profile).items() if name != "kept"})
    yield heading(2, "Sources")
    yield table(
        ("source", "records", "survivors", "MB of text", "tokens", "of all tokens"), _sources(profile, shards)
    )
    yield heading(2, "Languages")
    yield counts(("language", "survivors"), profile.languages)
    yield heading(2, "Lengths")
    yield paragraph(LEGEND)
    lengths = {int(bits): count for bits, count in shards.facts["lengths"].items()}
    plots = [bits_histogram("Tokens of a document", lengths)]
    plots += [_plot(title, name, profile, before) for name, title in TEXTS.items()]
    yield Markup(f'<div class="plots">{"".join(plots)}</div>')
    yield heading(2, "Drift against the last published")
    yield from _drift(drift(profile, baseline)) if baseline else [paragraph("Nothing was published before.")]
    yield heading(2, "Signals of the survivors")
    signals = [name for name, found in profile.histograms.items() if name not in TEXTS and _varies(found)]
    drawn = "".join(_plot(name, name, profile, before) for name in signals)
    yield Markup(f'<div class="plots">{drawn}</div>')
    yield heading(2, "Personal data and eval items left in the texts")
    yield table(
        ("kind", "survivors"),
        [(kind, n) for kind, n in profile.pii.items() if kind] + [*profile.items.items()],
    )
    yield heading(2, "Samples")
    yield from _samples(profile)


def _summary(profile: CorpusProfile, shards: Output) -> Iterator[tuple[Cell, ...]]:
    tokens = shards.tokens or 0
    yield "Records read", profile.records
    yield "Documents that survive", profile.documents
    yield "Bytes of text", profile.size
    yield "Words", profile.words
    yield "Tokens", tokens
    yield "Bytes a token", (shards.bytes or 0) / tokens if tokens else 0.0
    for split, found in shards.facts["splits"].items():
        yield f"Tokens of {split}", found["tokens"]


def _verdict(gate: str, found: Mapping[str, list[str]]) -> Markup:
    state = span("pass", "passed") if found["passed"] else span("fail", "did not pass")
    lines = [
        *(span("fail", line) for line in found["failed"]),
        *(span("warn", f"warning: {line}") for line in found["warnings"]),
        *map(shown, found["notes"]),
    ]
    return Markup(f"<p>{shown(gate)}: {state}{''.join(f'<br>{line}' for line in lines)}</p>")


def _funnel(profile: CorpusProfile, shards: Output) -> Iterator[tuple[Cell, ...]]:
    left = whole = profile.records
    yield "read", left, bar(1)
    for stage in STEPS:
        left -= sum(fate.records for fate in profile.fates if fate.stage == stage)
        yield f"after {stage}", left, bar(left / max(1, whole))
    yield "in shards", shards.documents or 0, bar((shards.documents or 0) / max(1, whole))


def _sources(profile: CorpusProfile, shards: Output) -> Iterator[tuple[Cell, ...]]:
    tokens: Mapping[str, int] = shards.facts["sources"]
    whole = sum(tokens.values()) or 1
    for name, origin in sorted(profile.sources.items(), key=lambda pair: (-tokens.get(pair[0], 0), pair[0])):
        found = tokens.get(name, 0)
        yield name, origin.records, origin.documents, origin.bytes / 1e6, found, bar(found / whole)


def _drift(found: Drift) -> Iterator[Markup]:
    rows: list[tuple[Cell, ...]] = [
        ("relative change of documents", found.documents),
        ("relative change of bytes", found.bytes),
        ("mix of sources, bits", found.sources),
        ("mix of languages, bits", found.languages),
        ("what became of records, bits", found.rules),
        ("sources that are gone", ", ".join(found.vanished) or "none"),
    ]
    yield table(("figure", "drift"), rows)
    for title, values in (("PSI beyond chance", found.psi), ("change of the fraction of nulls", found.nulls)):
        moved = sorted(((value, name) for name, value in values.items() if value), reverse=True)[:15]
        yield table(("column", title), [(name, value) for value, name in moved] or [("none", 0)])


def _plot(title: str, name: str, profile: CorpusProfile, before: Mapping[str, Mapping[int, int]]) -> Markup:
    return histogram(title, dict(profile.histograms.get(name, ())), before.get(name))


def _varies(found: tuple[tuple[int, int], ...]) -> bool:
    return any(bin_ != ZERO for bin_, _ in found)


def _samples(profile: CorpusProfile) -> Iterator[Markup]:
    for rule, samples in groupby(profile.samples, key=lambda sample: sample.rule):
        shown_samples = "".join(map(_sample, samples))
        yield Markup(f"<details><summary>{shown(rule)}</summary>{shown_samples}</details>")


def _sample(sample: Sample) -> Markup:
    text = "(no text)" if sample.text is None else sample.text
    return Markup(f"<small><code>{shown(sample.id)}</code></small><pre>{shown(text)}</pre>")
