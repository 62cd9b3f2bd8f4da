"""pretrain: trains the model of each published dataset that woke it. Wakes `evaluate`."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, AssetOrTimeSchedule, Param, get_current_context, task

from bloomery.airflow.assets import CHECKPOINTS, DATASETS, announce, woken_by
from bloomery.airflow.operators import DEFAULTS, StageOperator, at, explained

with DAG(
    "pretrain",
    description="Published shards -> a journal of checkpoints",
    schedule=AssetOrTimeSchedule(timetable=at("*/10 * * * *"), assets=[DATASETS]),
    is_paused_upon_creation=False,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS | {"execution_timeout": timedelta(days=60)},
    doc_md=__doc__,
    tags=["training"],
    params={
        "name": Param(
            None,
            type=["null", "string"],
            title="Name",
            description="by hand: name of the published dataset to train on; empty: what the event names",
        )
    },
) as dag:

    @task
    def begin() -> list[dict[str, str]]:
        """The runs to train: of the events, the one that a person names, or those whose event was lost."""
        from bloomery.airflow.work import published, unstarted

        context = get_current_context()
        with explained():
            name = context["params"]["name"]
            return [published(name)] if name else woken_by(DATASETS, context) or unstarted()

    @task(outlets=[CHECKPOINTS])
    def wake(item: dict[str, str]):
        """Wakes `evaluate`, unless the run ends here."""
        yield announce(CHECKPOINTS, item, after="pretrain")

    train = StageOperator.partial(
        task_id="train", pool="training", map_index_template="{{ task.item['name'] }}"
    ).expand(item=begin())
    wake.expand(item=train.output)
