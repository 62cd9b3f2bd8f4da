"""release: exports a candidate, signs it, asks a person, promotes it. One that loses is kept."""

from __future__ import annotations

from airflow.sdk import DAG, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowSkipException

from bloomery.airflow.approval import ReleaseApproval
from bloomery.airflow.assets import CANDIDATES, woken_by
from bloomery.airflow.operators import DEFAULTS, LOG, StageOperator, explained

with DAG(
    "release",
    description="Candidate -> export -> decision -> signature -> approval -> champion",
    schedule=[CANDIDATES],
    is_paused_upon_creation=False,
    catchup=False,
    default_args=DEFAULTS,
    doc_md=__doc__,
    tags=["release"],
) as dag:

    @task
    def begin() -> list[dict[str, str]]:
        """The candidates that woke this run."""
        return woken_by(CANDIDATES, get_current_context())

    @task
    def decide(item: dict[str, str]) -> dict[str, str]:
        """Better than the champion, or the first? A candidate that loses ends here."""
        from bloomery.airflow.work import Kept, decide

        with explained():
            decided = decide(item, LOG.info)
        if isinstance(decided, Kept):
            raise AirflowSkipException(f"kept: {decided.reasons}")
        return decided

    @task
    def sign(item: dict[str, str]) -> dict[str, str]:
        """Signs the exported model with the deployment's key."""
        from bloomery.airflow.work import sign

        with explained():
            return sign(item, LOG.info)

    @task
    def promote(item: dict[str, str], approval: dict[str, str]) -> dict[str, str]:
        """Makes the candidate the champion: one compare-and-swap."""
        from bloomery.airflow.work import release

        with explained():
            return release(item, approval["approver"], LOG.info)

    @task_group
    def candidate(item: dict[str, str]):
        """One candidate's way."""
        signed = sign(decide(StageOperator(task_id="export", stage="export", item=item).output))
        promote(signed, ReleaseApproval(task_id="approve", item=signed).output)

    candidate.expand(item=begin())
