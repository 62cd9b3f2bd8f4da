"""What a profile counts: mixes, nulls, histograms and the least ids per rule, of batches that add up.

    batch -> Statistics   batch -> Statistics   ...        in the workers, on columns of pyarrow
             \\_____________ + ______________/              on the driver: the same for any partitioning

Values are counted into fixed bins, eight an octave, so that histograms of any two snapshots compare. Least
ids are a sample at random: an id is a hash.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from spark_jobs.cleaning.pii import KINDS, redact
from spark_jobs.contamination import Index

OCTAVE = 8
"""Bins from one power of two to the next."""
ZERO = -1024
"""Bin of what is not positive; below every other."""
_EDGES = 2.0 ** (np.arange(1, OCTAVE) / OCTAVE - 1)
"""Lower edges of the bins of one octave after its first, as fractions of its end: [OCTAVE - 1]."""

SAMPLES = 5
"""Records kept as samples of each rule, and of what was kept."""

LOOKS: Mapping[str, str] = {
    "api_key": "AKIA|ASIA|gh[pousr]_|github_pat_|glpat-|sk-|k_live_|xox|AIza|hf_|npm_|SG[.]|-----BEGIN",
    "email": "[A-Za-z0-9]@[A-Za-z0-9]",
    "ip": "[0-9][.][0-9]{1,3}[.][0-9]{1,3}[.][0-9]|:[0-9A-Fa-f]{0,4}:",
    "iban": "[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){11}",
    "credit_card": "[3-6][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{2}|3[47][0-9]{2}[ -]?[0-9]{6}",
    "phone": "[+][0-9]|[(][0-9]{3}[)]|[0-9]{3}[.-][0-9]{3}[.-][0-9]{4}",
}
"""What every text with personal data of a kind matches (RE2): only those that do are searched for it."""
MOJIBAKE = "\ufffd|[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac|\u00ef\u00bb\u00bf"
"""Marks of UTF-8 read as Latin-1 or Windows-1252, or of bytes that were none of any encoding."""

Values = npt.NDArray[np.float64]
Bins = npt.NDArray[np.int64]


def bins(values: Values) -> Bins:
    """The bin of each value: floor(OCTAVE * log2(value)), exact at powers of two; ZERO for none above 0."""
    fraction, exponent = np.frexp(values)
    found = (exponent.astype(np.int64) - 1) * OCTAVE + np.searchsorted(_EDGES, fraction, "right")
    return np.where(values > 0, found, ZERO)


def lower_edge(bin_: int) -> float:
    """Least value of a bin."""
    return 0.0 if bin_ == ZERO else 2.0 ** (bin_ / OCTAVE)


@dataclass
class Statistics:
    """Counts of some rows; `+` joins those of disjoint rows."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(what, value) -> rows, or a sum."""
    histograms: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(column, bin) -> rows."""
    least: dict[str, list[str]] = field(default_factory=dict)
    """Rule -> its SAMPLES least ids."""

    def __add__(self, other: Statistics) -> Statistics:
        least = {
            rule: heapq.nsmallest(SAMPLES, [*self.least.get(rule, []), *other.least.get(rule, [])])
            for rule in self.least.keys() | other.least.keys()
        }
        counts, histograms = Counter(self.counts), Counter(self.histograms)
        counts.update(other.counts)
        histograms.update(other.histograms)
        return Statistics(counts, histograms, least)

    def of(self, what: str) -> dict[str, int]:
        """Value -> count."""
        return {value: count for (kind, value), count in sorted(self.counts.items()) if kind == what}

    def to_json(self) -> str:
        """JSON; the same for equal counts."""
        counts = sorted([*key, count] for key, count in self.counts.items())
        histograms = sorted([*key, count] for key, count in self.histograms.items())
        return json.dumps([counts, histograms, dict(sorted(self.least.items()))])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what `to_json` wrote."""
        counts, histograms, least = json.loads(text)
        return cls(
            Counter({(what, value): count for what, value, count in counts}),
            Counter({(name, bin_): count for name, bin_, count in histograms}),
            least,
        )

    def tally(self, what: str, values: Any) -> None:
        """Counts each value of a column, null as an empty string."""
        for item in values.value_counts().to_pylist():
            self.counts[what, "" if item["values"] is None else str(item["values"])] += item["counts"]

    def measure(self, name: str, values: Any) -> None:
        """Counts the values of a numeric column into bins; nulls are no values."""
        found = bins(values.drop_null().to_numpy().astype(np.float64))
        counts = np.bincount(found - ZERO)
        for place in np.flatnonzero(counts).tolist():
            self.histograms[name, place + ZERO] += int(counts[place])


def of_records(rows: Any, numeric: Sequence[str], nullable: Sequence[str]) -> Statistics:
    """Counts of records and of their signals.

    Args:
        rows: pyarrow Table of id, status, rule, source, language, split, `numeric` and `nullable`.
        numeric: columns to count into bins, of survivors.
        nullable: columns whose nulls are counted, of survivors.
    """
    import pyarrow.compute as pc

    found = Statistics()
    ids: dict[str, list[str]] = {}
    for name, status, rule in zip(*(rows[c].to_pylist() for c in ("id", "status", "rule")), strict=True):
        ids.setdefault(rule or status, []).append(name)
    found.least = {rule: heapq.nsmallest(SAMPLES, names) for rule, names in ids.items()}
    kept = rows.filter(pc.equal(rows["status"], "kept"))
    for what in ("source", "language", "split"):
        found.tally(what, kept[what])
    for name in nullable:
        found.counts["nulls", name] += kept[name].null_count
    for name in numeric:
        found.measure(name, kept[name])
    return found


def of_texts(rows: Any, words: Any, items: Index) -> Statistics:
    """Counts of what the texts of survivors hold, measured anew: nothing that an earlier stage says counts.

    Args:
        rows: pyarrow Table of id, source and text.
        words: of each text, as `words_of` tells them.
        items: of the eval sets.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = Statistics()
    texts = pc.fill_null(rows["text"], "")
    sizes = pc.binary_length(texts)
    counts = pc.list_value_length(words)
    characters = pc.utf8_length(texts)
    found.counts["texts", "documents"] = len(rows)
    found.counts["texts", "bytes"] = pc.sum(sizes).as_py() or 0
    found.counts["texts", "words"] = pc.sum(counts).as_py() or 0
    found.counts["texts", "empty"] = pc.sum(pc.equal(pc.utf8_trim_whitespace(texts), "")).as_py() or 0
    found.counts["texts", "mojibake"] = pc.sum(pc.match_substring_regex(texts, MOJIBAKE)).as_py() or 0
    by_source = pa.table({"source": rows["source"], "bytes": sizes}).group_by("source")
    for row in by_source.aggregate([("bytes", "sum")]).to_pylist():
        found.counts["bytes", row["source"] or ""] += row["bytes_sum"]
    found.measure("bytes", sizes)
    found.measure("characters", characters)
    found.measure("words", counts)
    spread = pc.divide(pc.cast(characters, pa.float64()), pc.max_element_wise(counts, 1))
    found.measure("characters_per_word", spread)
    _personal(found, texts)
    for text in texts.to_pylist():
        hits = items.hits(text)
        found.counts["texts", "contaminated"] += bool(hits)
        found.counts.update(("item", hit.item) for hit in hits)
    return found


def _personal(found: Statistics, texts: Any) -> None:
    import pyarrow.compute as pc

    holders: set[int] = set()
    for kind in KINDS:
        places = np.flatnonzero(pc.match_substring_regex(texts, LOOKS[kind]).to_numpy(zero_copy_only=False))
        holding = [int(n) for n in places if redact(texts[int(n)].as_py(), [kind]).counts[kind]]
        found.counts["pii", kind] += len(holding)
        holders |= set(holding)
    found.counts["texts", "pii"] += len(holders)


def words_of(texts: Any) -> Any:
    """The words of each text of a column, in lower case: what ASCII white space separates."""
    import pyarrow.compute as pc

    return pc.ascii_split_whitespace(pc.utf8_trim_whitespace(pc.utf8_lower(pc.fill_null(texts, ""))))


def keys(values: Any) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each string of a column: [rows]."""
    from pandas.util import hash_array

    return hash_array(values.fill_null("").to_numpy(zero_copy_only=False), categorize=False)
