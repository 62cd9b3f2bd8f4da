"""Verdicts: the first bound in the config's chain that a document's signals break.

The same checks are SQL for the stage `clean`, and columns of arrays for `what-if` and the tests. A signal
that is null breaks no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bloomery.config.cleaning import CleanConfig
from spark_jobs.cleaning.signals import SIGNALS, column


class Check(NamedTuple):
    """One way to break the rules."""

    rule: str
    column: str
    operator: str
    """What breaks it: < or > the threshold, or "not in" the allowed values."""
    threshold: float | None
    allowed: tuple[str, ...] = ()
    value: str | None = None
    """Column of the value that the verdict shows, where it is not `column`."""

    @property
    def broken(self) -> str:
        """SQL condition."""
        if self.operator == "not in":
            allowed = ", ".join(
                "'" + item.replace("\\", "\\\\").replace("'", "\\'") + "'" for item in self.allowed
            )
            return f"{self.column} NOT IN ({allowed})"
        return f"{self.column} {self.operator} {_literal(self.threshold)}"

    @property
    def verdict(self) -> str:
        """SQL struct of rule, value and threshold."""
        shown = self.column if self.operator != "not in" else self.value
        value = f"double({shown})" if shown else "double(NULL)"
        return (
            f"named_struct('rule', '{self.rule}', 'value', {value}, 'threshold', {_literal(self.threshold)})"
        )


def checks(config: CleanConfig) -> list[Check]:
    """Every check of a config, in the order of its chain, and of registration within a family."""
    found: list[Check] = []
    for family in config.chain:
        found += _MEMBERSHIPS.get(family, _bounds)(config, family)
    return found


def verdict(config: CleanConfig) -> str:
    """SQL of the struct (rule, value, threshold) of the first check that a row breaks; null for none."""
    cases = " ".join(f"WHEN {check.broken} THEN {check.verdict}" for check in checks(config))
    return f"CASE {cases} END" if cases else _NONE


def first_broken(table: Any, config: CleanConfig) -> npt.NDArray[np.int64]:
    """For each row of a pyarrow table, the number of the first check that it breaks; that of all for none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    judged = checks(config)
    first = np.full(len(table), len(judged))
    for number, check in reversed(list(enumerate(judged))):
        values = table[check.column]
        if check.operator == "not in":
            known = pc.is_in(values, pa.array(check.allowed, pa.string()))
            broken = pc.and_(pc.is_valid(values), pc.invert(known))
        else:
            compare = pc.less if check.operator == "<" else pc.greater
            broken = pc.fill_null(compare(values, check.threshold), False)
        first[broken.to_numpy(zero_copy_only=False)] = number
    return first


def _bounds(config: CleanConfig, family: str) -> Sequence[Check]:
    found, section = [], getattr(config, family)
    for name in SIGNALS:
        of, _, short = name.partition(".")
        if of == family:
            ends = (("<", f"min_{short}"), (">", f"max_{short}"))
            bounds = ((operator, getattr(section, end, None)) for operator, end in ends)
            found += [
                Check(name, column(name), operator, float(bound))
                for operator, bound in bounds
                if bound is not None
            ]
    return found


def _language(config: CleanConfig, _: str) -> Sequence[Check]:
    if not config.languages:
        return []
    least = config.min_language_score
    return [
        Check("language.code", "language", "not in", least, config.languages, "language_score"),
        Check("language.score", "language_score", "<", least),
    ]


def _licence(config: CleanConfig, _: str) -> Sequence[Check]:
    return [Check("licence", "licence", "not in", None, config.licences)] if config.licences else []


def _literal(number: float | None) -> str:
    return "double(NULL)" if number is None else f"{float(number)!r}D"


_MEMBERSHIPS = {"language": _language, "licence": _licence}
_NONE = "CAST(NULL AS STRUCT<rule: STRING, value: DOUBLE, threshold: DOUBLE>)"
