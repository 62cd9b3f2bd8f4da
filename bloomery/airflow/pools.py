"""The pools of a deployment, made at start; their slots are the operator's to change afterwards.

python -P -m bloomery.airflow.pools
"""

from __future__ import annotations

from bloomery.airflow.client import AirflowClient
from bloomery.cluster.credentials import credentials
from bloomery.config.settings import settings

POOLS = {
    "spark": (2, "stages on the Spark engine at once"),
    "training": (1, "training runs at once"),
    "evaluation": (1, "evaluations at once, also beside a training run"),
}


def client() -> AirflowClient:
    """A client of this deployment's Airflow, with the login made at first start."""
    login = credentials(settings().home)
    return AirflowClient(settings().airflow_url, login["user"], login["password"])


if __name__ == "__main__":
    for name, (slots, description) in POOLS.items():
        client().ensure_pool(name, slots, description)
