"""Great Expectations judges a profile: one row of measured figures, or one row a shard.

Measuring is one aggregation on the engine; twelve expectations on the table itself would be twenty jobs. An
expectation that
*raises* looks like a failed one in the library's result, so it is told apart here: a verdict is given only
when every expectation was really judged.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bloomery.errors import TransientError

Severity = Literal["critical", "warning"]


@dataclass(frozen=True)
class Check:
    """One expectation on a column of the profile.

    `at_least` and `at_most` are inclusive; None leaves that side open. `why` is what a person reads when it
    fails.
    """

    column: str
    why: str
    at_least: float | None = None
    at_most: float | None = None
    severity: Severity = "critical"


@dataclass(frozen=True)
class Judgement:
    """What became of a check."""

    check: Check
    observed: Any
    passed: bool

    def line(self) -> str:
        """The judgement as one line."""
        low, high = self.check.at_least, self.check.at_most
        allowed = f">= {low:g}" if high is None else f"<= {high:g}" if low is None else f"{low:g}..{high:g}"
        seen = f"{self.observed:.6g}" if isinstance(self.observed, float) else self.observed
        return f"{self.check.column} is {seen}, allowed {allowed} ({self.check.why})"


class ExpectationError(TransientError):
    """An expectation could not be judged: nothing is committed, and the gate blocks until it can be."""


def judge(profile: Any, checks: Sequence[Check]) -> list[Judgement]:
    """Judges every row of `profile` (a pandas DataFrame) by `checks`.

    Raises:
        ExpectationError: an expectation raised instead of judging.
    """
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.expectations.core.expect_column_values_to_be_between import (
        ExpectColumnValuesToBeBetween,
    )
    from great_expectations.expectations.metadata_types import FailureSeverity

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        source = context.data_sources.add_pandas("profile")
        batch = (
            source.add_dataframe_asset("profile")
            .add_batch_definition_whole_dataframe("all")
            .get_batch(batch_parameters={"dataframe": profile})
        )
        suite = gx.ExpectationSuite(
            name="policy",
            expectations=[
                ExpectColumnValuesToBeBetween(
                    column=check.column,
                    min_value=check.at_least,
                    max_value=check.at_most,
                    severity=FailureSeverity(check.severity),
                    meta={"check": index},
                )
                for index, check in enumerate(checks)
            ],
        )
        result = batch.validate(suite)
    judged = []
    for item in result.results:
        assert item.expectation_config is not None
        check = checks[item.expectation_config.meta["check"]]
        raised = item.exception_info.get("raised_exception") or any(
            isinstance(info, dict) and info.get("raised_exception") for info in item.exception_info.values()
        )
        if raised:
            raise ExpectationError(
                f"expectation on {check.column} could not be judged: {item.exception_info}",
                "mend the gate or its profile; nothing was committed, so a retry judges again",
            )
        values = profile[check.column]
        unexpected = item.result.get("partial_unexpected_list") or []
        missing = bool(values.isna().any())
        observed = float("nan") if missing else (unexpected[0] if unexpected else values.iloc[0])
        judged.append(Judgement(check, _plain(observed), bool(item.success) and not missing))
    if len(judged) != len(checks):
        raise ExpectationError(f"{len(judged)} of {len(checks)} expectations were judged")
    return judged


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
