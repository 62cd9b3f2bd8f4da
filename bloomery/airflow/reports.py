"""Stages that leave a report: gates, and the dataset's own. A person opens it by the task's link."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from bloomery.airflow.operators import LOG, Item, StageOperator, explained, merged
from bloomery.errors import BloomeryError


class ReportLink(BaseOperatorLink):
    """Opens the report of a task, also of one that failed."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002
        """The report's address; empty where the task ended before there was one."""
        from bloomery.airflow.work import report_url

        return report_url(operator.made) if operator.made else ""


class ReportOperator(StageOperator):
    """Runs a stage that leaves a report. A verdict that did not pass ends the task, without retries; one with
    warnings is noted on the DAG run."""

    operator_extra_links = (ReportLink(),)

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.made = ""

    def execute(self, context: Any) -> Item:
        """Runs the stage and returns the item with its manifest's digest."""
        from bloomery.airflow.work import judge, report_url, run_item

        item = merged(self.item)
        with explained():
            item = run_item(self.stage, item, LOG.info)
            self.made = item[self.stage]
            LOG.info("%s: report: %s", self.stage, report_url(self.made))
            warnings = judge(self.stage, item)
        for line in warnings:
            LOG.warning("%s: warning: %s", self.stage, line)
        if warnings:
            _note(context, f"{self.stage}: {len(warnings)} warning(s): {'; '.join(warnings)}")
        return item


def _note(context: Any, line: str) -> None:
    """Notes a line on the DAG run; where Airflow does not take it, the log has said it."""
    from bloomery.airflow.pools import client

    run = context["dag_run"]
    try:
        client().note(run.dag_id, run.run_id, line)
    except BloomeryError as error:
        LOG.warning("the run has no note: %s", error)
