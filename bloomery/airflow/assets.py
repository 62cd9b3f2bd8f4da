"""The assets that chain the DAGs. An event wakes the next DAG and carries the run's item; nothing else is
read from it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, Metadata
from airflow.sdk.exceptions import AirflowSkipException

from bloomery.airflow.operators import Item

DATASETS = Asset("bloomery://datasets")
CHECKPOINTS = Asset("bloomery://checkpoints")
CANDIDATES = Asset("bloomery://candidates")

UNTIL = ["corpus", "pretrain", "evaluate", "release"]
"""The DAGs in their order."""


def announce(asset: Asset, item: Item, after: str) -> Metadata:
    """The event that wakes the DAG after `after` for this item.

    Raises:
        AirflowSkipException: the run ends with `after`; no event is made.
    """
    if UNTIL.index(item["until"]) <= UNTIL.index(after):
        raise AirflowSkipException(f"the run ends with {item['until']}, as asked")
    return Metadata(asset, extra={"item": {**item}})


def woken_by(asset: Asset, context: Any) -> list[Item]:
    """The items of all events that woke this run, one a config: the scheduler folds queued events into one
    run."""
    events = (context.get("triggering_asset_events") or {}).get(asset, [])
    items = [dict(event.extra["item"]) for event in events]
    return list({item["config"]: item for item in items}.values())
