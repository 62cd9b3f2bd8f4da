"""evaluate: measures each live checkpoint without an evaluation, also while its run goes on. Wakes
`release`."""

from __future__ import annotations

from airflow.sdk import DAG, AssetOrTimeSchedule, get_current_context, task

from bloomery.airflow.assets import CANDIDATES, CHECKPOINTS, announce, woken_by
from bloomery.airflow.operators import DEFAULTS, StageOperator, at, explained

with DAG(
    "evaluate",
    description="Live checkpoints without an evaluation -> bits per byte on the held-out split",
    schedule=AssetOrTimeSchedule(timetable=at("*/10 * * * *"), assets=[CHECKPOINTS]),
    is_paused_upon_creation=False,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    doc_md=__doc__,
    tags=["evaluation"],
) as dag:

    @task
    def begin() -> list[dict[str, str]]:
        """The checkpoints to measure: what the store says, whatever woke this run."""
        from bloomery.airflow.work import unevaluated

        with explained():
            return unevaluated()

    @task(trigger_rule="none_failed")
    def candidates() -> list[dict[str, str]]:
        """The finished, evaluated runs that woke this one, or that nobody decided on yet."""
        from bloomery.airflow.work import candidates

        context = get_current_context()
        with explained():
            return candidates(woken_by(CHECKPOINTS, context))

    @task(outlets=[CANDIDATES])
    def wake(item: dict[str, str]):
        """Wakes `release`, unless the run ends here."""
        yield announce(CANDIDATES, item, after="evaluate")

    evaluate = StageOperator.partial(
        task_id="evaluate",
        pool="evaluation",
        map_index_template="{{ task.item['name'] }} {{ task.item['step'] }}",
    ).expand(item=begin())
    found = candidates()
    evaluate >> found
    wake.expand(item=found)
