"""release: exports a candidate, asks a person, and promotes it. One that loses is kept, with the reasons."""

from __future__ import annotations

from airflow.sdk import DAG, get_current_context, task, task_group

from bloomery.airflow.approval import ReleaseApproval
from bloomery.airflow.assets import CANDIDATES, woken_by
from bloomery.airflow.operators import DEFAULTS, StageOperator, explained

with DAG(
    "release",
    description="Candidate -> export -> signature -> decision -> approval -> champion",
    schedule=[CANDIDATES],
    is_paused_upon_creation=False,
    catchup=False,
    default_args=DEFAULTS,
    doc_md=__doc__,
    tags=["release"],
) as dag:

    @task
    def begin() -> list[dict[str, str]]:
        """The candidates, each with the champion that it is compared with, read once."""
        from bloomery.airflow.work import with_champion

        context = get_current_context()
        with explained(context["ti"].log):
            return [with_champion(item) for item in woken_by(CANDIDATES, context)]

    @task
    def decide(item: dict[str, str]) -> dict[str, str]:
        """Better than the champion, or first? A candidate that loses ends here."""
        from bloomery.airflow.work import decide

        log = get_current_context()["ti"].log
        with explained(log):
            return decide(item, log.info)

    @task(trigger_rule="none_failed_min_one_success")
    def promote(item: dict[str, str], approval: dict) -> dict[str, str]:
        """Makes the candidate the champion: one compare-and-swap."""
        from bloomery.airflow.work import promote

        log = get_current_context()["ti"].log
        with explained(log):
            return promote(item, approval, log.info)

    @task_group
    def candidate(item: dict[str, str]):
        """One candidate's way."""
        exported = StageOperator(task_id="export", item=item).output
        decided = decide(exported)
        approval = ReleaseApproval(task_id="approve", item=decided)
        promote(decided, approval.output)

    candidate.expand(item=begin())
