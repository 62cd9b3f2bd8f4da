"""A corrupted snapshot is blocked, and a sound one is not: counted and judged as in a run, without an engine.

The tables are real: documents of several sources and languages, measured by the stage's own code. Each
corruption then does to them what goes wrong upstream, and the profile is counted anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bloomery.artifacts.digests import TableDigest
from bloomery.config.cleaning import MeasureConfig
from bloomery.config.gates import CorpusGateConfig
from spark_jobs.contamination import Index, Item
from spark_jobs.measure import READ, SCHEMA, measure_rows
from spark_jobs.profiling import NULLABLE, NUMERIC, STANDARD, CorpusProfile, assemble
from spark_jobs.statistics import keys, of_records, of_texts, words_of
from spark_jobs.tables import Cell, Profile, record_batch
from tests.spark_jobs.corpus import prose
from validation.gates.corpus import checks, figures, judge_profile
from validation.gates.suite import judge

POLICY = CorpusGateConfig()
DOCUMENTS = 4000
PART = 0.5
"""Of all documents, that a snapshot has at random: two share half of theirs."""
QUESTION = "how many loaves does the baker of the quiet village bake on a winter morning before sunrise"
ITEMS = Index([Item("quiz", 0, QUESTION)], STANDARD)
FOOTER = " ".join(["All rights reserved."] * 12)
ERROR_PAGE = " ".join(["404: page not found."] * 9)
GERMAN = "Der alte Lehrer ging am Abend zum Hafen und dachte an die Reise über das Meer. "


@dataclass(frozen=True)
class Snapshot:
    """What the profile reads: a row a record, and the survivors' texts."""

    records: pd.DataFrame
    texts: pd.DataFrame

    def profile(self) -> CorpusProfile:
        """The profile, by the arithmetic that the stage runs in Spark's workers."""
        records = pa.Table.from_pandas(self.records, preserve_index=False)
        texts = pa.table({c: pa.array(self.texts[c], pa.string(), from_pandas=True) for c in self.texts})
        fates = Counter(
            zip(self.records.source, self.records.status, self.records.rule.fillna(""), strict=True)
        )
        group = ("source", "stage", "status", "rule")
        cells = {
            (source, "" if status == "kept" else "clean", status, rule): Cell(TableDigest(count), (count,))
            for (source, status, rule), count in fates.items()
        }
        words = words_of(texts["text"])
        columns = {"id": texts["id"], "content": pc.binary_join(words, " ")}
        repeated = {kind: len(found) - len(np.unique(keys(found))) for kind, found in columns.items()}
        return assemble(
            Profile(group, ("length",), cells=cells),
            of_records(records, NUMERIC, NULLABLE),
            of_texts(texts, words, ITEMS),
            repeated,
            {},
        )

    def part(self, random: np.random.Generator, fraction: float) -> Snapshot:
        """Some of its records, at random."""
        records = self.records[random.random(len(self.records)) < fraction]
        return Snapshot(records, self.texts[self.texts.id.isin(records.id)])

    def write(self, some: pd.Series, change: Callable[[str], str | None]) -> Snapshot:
        """With some texts changed."""
        texts = self.texts.copy()
        texts.loc[some, "text"] = texts.loc[some, "text"].map(change)
        return replace(self, texts=texts)

    def some(self, random: np.random.Generator, fraction: float) -> pd.Series:
        """A fraction of the survivors' texts, as a mask."""
        return pd.Series(random.random(len(self.texts)) < fraction, index=self.texts.index)

    def mark(self, some: np.ndarray, **changes: object) -> Snapshot:
        """With columns of some records changed; texts of what survives no more are gone."""
        records = self.records.copy()
        for name, value in changes.items():
            records.loc[some, name] = value
        kept = set(records.id[records.status == "kept"])
        return Snapshot(records, self.texts[self.texts.id.isin(kept)])


@cache
def pool() -> Snapshot:
    """Every document there is; a snapshot is a part of it."""
    random = np.random.default_rng(0)
    rows, about = [], []
    for number in range(DOCUMENTS):
        text = prose(number, 4 + int(random.gamma(2, 3)))
        if number % 20 == 0:
            text = GERMAN * (4 + number % 7) + str(number)
        row = dict.fromkeys(READ) | {
            "id": f"{random.integers(1 << 62):032x}",
            "source": ("web", "web", "web", "books", "code")[number % 5],
            "path": "a.jsonl",
            "length": len(text),
            "url": f"https://example.org/{number}" if number % 10 else None,
            "date": "2024-01-01" if number % 3 else None,
            "text": text,
            "status": "kept",
        }
        measured = measure_rows([row], MeasureConfig())[0]
        rows.append(measured)
        rule = "gopher.words" if number % 6 == 1 else None
        about.append(("dropped" if rule else "kept", rule, "held_out" if random.random() < 0.05 else "train"))
    table = record_batch(rows, SCHEMA).to_pandas()
    table["status"], table["rule"], table["split"] = zip(*about, strict=True)
    table.loc[table.status != "kept", "split"] = None
    texts = table.loc[table.status == "kept", ["id", "source", "text"]].reset_index(drop=True)
    columns = ["id", "status", "rule", "source", "split", *NULLABLE, *NUMERIC]
    return Snapshot(table[columns].reset_index(drop=True), texts)


@pytest.fixture(scope="module")
def published() -> CorpusProfile:
    return pool().part(np.random.default_rng(1), PART).profile()


def kept(snapshot: Snapshot, random: np.random.Generator, fraction: float) -> np.ndarray:
    """A fraction of the survivors' records, as a mask."""
    return (snapshot.records.status == "kept").to_numpy() & (random.random(len(snapshot.records)) < fraction)


def doubled(snapshot: Snapshot, random: np.random.Generator) -> Snapshot:
    """Rows that a join has doubled."""
    return replace(
        snapshot, texts=pd.concat([snapshot.texts, snapshot.texts.sample(frac=0.02, random_state=1)])
    )


def copied(snapshot: Snapshot, random: np.random.Generator) -> Snapshot:
    """A crawl that brought pages again, under new ids, and a dedup that was skipped."""
    records = snapshot.records[snapshot.records.status == "kept"].sample(frac=0.02, random_state=1)
    texts = snapshot.texts[snapshot.texts.id.isin(records.id)]
    return Snapshot(
        pd.concat([snapshot.records, records.assign(id=records.id + "x")]),
        pd.concat([snapshot.texts, texts.assign(id=texts.id + "x")]),
    )


CORRUPTIONS: dict[str, Callable[[Snapshot, np.random.Generator], Snapshot]] = {
    "two fifths of the records are gone": lambda s, r: s.part(r, 0.6),
    "some survivors have no row": lambda s, r: replace(s, texts=s.texts[~s.some(r, 0.01)]),
    "rows doubled": doubled,
    "documents copied under new ids": copied,
    "texts emptied": lambda s, r: s.write(s.some(r, 0.01), lambda _: ""),
    "texts null": lambda s, r: s.write(s.some(r, 0.01), lambda _: None),
    "urls null": lambda s, r: s.mark(kept(s, r, 0.2), url=None),
    "languages null": lambda s, r: s.mark(kept(s, r, 0.1), language=None),
    "a fifth is French": lambda s, r: s.mark(kept(s, r, 0.2), language="fr"),
    "texts cut to 200 characters": lambda s, r: s.write(s.some(r, 1), lambda text: text[:200]),
    "texts cut in half": lambda s, r: s.write(s.some(r, 1), lambda text: text[: len(text) // 2]),
    "a footer on every page": lambda s, r: s.write(s.some(r, 1), lambda text: f"{text} {FOOTER}"),
    "an error page in place of texts": lambda s, r: s.write(s.some(r, 0.03), lambda _: ERROR_PAGE),
    "e-mail addresses left in": lambda s, r: s.write(s.some(r, 0.02), lambda text: f"{text} ada@example.org"),
    "phone numbers left in": lambda s, r: s.write(s.some(r, 0.02), lambda text: f"+44 20 7946 0958 {text}"),
    "an eval item in three texts": lambda s, r: s.write(
        pd.Series(np.arange(len(s.texts)) < 3, index=s.texts.index), lambda text: f"{text} {QUESTION}?"
    ),
    "a small source is gone": lambda s, r: s.part(r, 2).mark(
        (s.records.source == "code").to_numpy(), status="dropped", rule="blocklist.urls", split=None
    ),
    "half of a source is gone": lambda s, r: s.mark(
        ((s.records.source == "web") & (r.random(len(s.records)) < 0.5)).to_numpy(),
        status="dropped", rule="blocklist.urls", split=None,
    ),
    "read in the wrong encoding": lambda s, r: s.write(
        s.some(r, 0.05), lambda text: f"{text} café".encode().decode("latin-1")
    ),
    "files broken": lambda s, r: s.mark(
        kept(s, r, 0.08), status="quarantined", rule="file.broken", split=None
    ),
    "a rule gone wild": lambda s, r: s.mark(
        kept(s, r, 0.4), status="dropped", rule="gopher.alpha_words", split=None
    ),
    "markup left in": lambda s, r: s.write(
        s.some(r, 0.5), lambda text: "".join(f"<span class='w'>{word}</span>" for word in text.split())
    ),
    "blanks lost": lambda s, r: s.write(s.some(r, 0.5), lambda text: text.replace(" ", "")),
    "a signal measured by another tokenizer": lambda s, r: s.mark(
        np.ones(len(s.records), bool), gopher_words=s.records.gopher_words * 1.5
    ),
    "no document held out": lambda s, r: s.mark(kept(s, r, 2), split="train"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_a_corrupted_snapshot_is_blocked(name, published):
    random = np.random.default_rng(7)
    corrupted = CORRUPTIONS[name](pool().part(random, PART), random)
    judgements = judge_profile(corrupted.profile(), published, POLICY)
    blocked = [j.check.column for j in judgements if not j.passed and j.check.severity == "critical"]
    assert blocked, json.dumps({j.check.column: j.observed for j in judgements}, indent=1)


def test_fifty_sound_snapshots_are_not_blocked_and_warn_of_nothing(published):
    """All in one suite: a check passes only if it does for each of them."""
    random = np.random.default_rng(3)
    found = [figures(pool().part(random, PART).profile(), published, POLICY) for _ in range(50)]
    frame = pd.DataFrame([{figure.name: figure.value for figure in one} for one in found])
    judgements = judge(frame, [check for figure in found[0] for check in checks(figure)])
    assert [j.line() for j in judgements if not j.passed] == []
    assert {figure.name for figure in found[0] if figure.name.startswith("drift")}
