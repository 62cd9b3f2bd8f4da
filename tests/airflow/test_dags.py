"""The DAG files load, are thin, load fast and load no engine; items of two configs never mix."""

from __future__ import annotations

import subprocess
import sys

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from bloomery.airflow.assets import DATASETS, announce, woken_by
from bloomery.airflow.operators import StageOperator, StoppedError, explained, merged
from bloomery.errors import BloomeryError, TransientError
from tests.deployment import ROOT

DAGS = sorted((ROOT / "dags").glob("*.py"))
LOAD = """
import runpy, sys, time
import airflow.sdk
began = time.process_time()
for path in sys.argv[1:]:
    found = runpy.run_path(path)["dag"]
    assert found.catchup is False and found.task_dict, path
print(time.process_time() - began)
engines = ("torch", "pyspark", "great_expectations", "mlflow", "deepspeed", "delta") & sys.modules.keys()
assert not engines, engines
"""


def test_parsing_the_folder_costs_under_a_second_and_loads_no_engine():
    code = LOAD.replace('("torch"', '{"torch"').replace('"delta")', '"delta"}')
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, DAGS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 1.0


def test_what_a_finished_stage_loads_holds_no_engine():
    engines = '("torch", "pyspark", "great_expectations", "mlflow", "deepspeed", "delta", "transformers")'
    loads = "import sys, bloomery.airflow.work, bloomery.airflow.result"
    code = f"{loads}; print([name for name in {engines} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", DAGS, ids=lambda path: path.name)
def test_a_dag_file_is_thin(path):
    assert len(path.read_text().splitlines()) < 80


def test_one_python_file_at_most_stands_under_plugins():
    assert len(list((ROOT / "plugins").rglob("*.py"))) <= 1


def event(item):
    return type("Event", (), {"extra": {"item": item}})()


def test_the_events_of_two_configs_make_two_items():
    one, other = ({"config": digest, "name": "n", "until": "release"} for digest in ("1", "2"))
    context = {"triggering_asset_events": {DATASETS: [event(one), event(other), event(dict(one))]}}
    assert woken_by(DATASETS, context) == [one, other]
    assert woken_by(DATASETS, {"triggering_asset_events": {}}) == []


def test_a_run_that_ends_early_wakes_nothing():
    item = {"config": "1", "until": "pretrain"}
    assert announce(DATASETS, item, "corpus").extra == {"item": item}
    for after in ("pretrain", "evaluate"):
        with pytest.raises(AirflowSkipException, match="ends with pretrain"):
            announce(DATASETS, item, after)


def test_items_of_one_run_merge_and_of_two_are_refused():
    assert merged([{"config": "1", "a": "x"}, {"config": "1", "b": "y"}]) == {
        "config": "1",
        "a": "x",
        "b": "y",
    }
    with pytest.raises(AirflowFailException, match="different configs"):
        merged([{"config": "1"}, {"config": "2"}])


def test_a_lasting_fault_spends_no_retry_and_a_passing_one_does():
    with pytest.raises(AirflowFailException, match="the file is broken"), explained():
        raise BloomeryError("the file is broken", "mend it")
    with pytest.raises(AirflowException, match="the engine restarts"), explained():
        raise TransientError("the engine restarts")
    with pytest.raises(ZeroDivisionError), explained():
        raise ZeroDivisionError


def test_a_stop_interrupts_the_body():
    with pytest.raises(StoppedError, match="ingest was stopped"):
        StageOperator(task_id="ingest", item={}).on_kill()
