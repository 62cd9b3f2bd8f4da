"""corpus: from sources to published token shards. Wakes `pretrain`."""

from __future__ import annotations

from airflow.sdk import DAG, Param, get_current_context, task

from bloomery.airflow.assets import DATASETS, UNTIL, announce
from bloomery.airflow.catalogue import DATA_STAGES, REPORTED
from bloomery.airflow.operators import DEFAULTS, LOG, StageOperator, at, explained
from bloomery.airflow.reports import ReportOperator

with DAG(
    "corpus",
    description="Sources -> records -> clean texts -> survivors -> gate -> shards -> gate -> report",
    schedule=at("0 0 * * *"),
    is_paused_upon_creation=False,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    doc_md=__doc__,
    tags=["data"],
    params={
        "config": Param(
            "configs/demo.yaml",
            type="string",
            title="Run config",
            description="YAML file (a path on Airflow's machine), or the digest of a config in the store",
        ),
        "until": Param(
            "release",
            enum=UNTIL,
            type="string",
            title="Until",
            description="last DAG of the chain that this run wakes",
        ),
    },
) as dag:

    @task
    def begin() -> dict[str, str]:
        """Resolves the config, and reads the mutable refs of this run once."""
        from bloomery.airflow.work import begin

        context = get_current_context()
        with explained():
            return begin(context["params"]["config"], context["params"]["until"])

    @task
    def snapshot(item: dict[str, str]) -> dict[str, str]:
        """Lists the sources; a past date replays what was listed then."""
        from bloomery.airflow.work import take_snapshot

        context = get_current_context()
        date = context["dag_run"].logical_date
        with explained():
            return take_snapshot(item, date and date.date().isoformat(), LOG.info)

    @task
    def publish(item: dict[str, str]) -> dict[str, str]:
        """Makes the shards the published dataset of this name."""
        from bloomery.airflow.work import publish

        with explained():
            return publish(item, LOG.info)

    @task(outlets=[DATASETS])
    def wake(item: dict[str, str]):
        """Wakes `pretrain`, unless the run ends here."""
        yield announce(DATASETS, item, after="corpus")

    item = snapshot(begin())
    for name in DATA_STAGES[1:]:
        operator = ReportOperator if name in REPORTED else StageOperator
        item = operator(task_id=name, item=item, pool="spark").output
    wake(publish(item))
