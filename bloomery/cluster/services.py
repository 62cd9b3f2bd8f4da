"""The services of a profile: the Spark engine, MLflow, and Airflow's processes in the order that they need.

Airflow's scheduler must not start before the API answers, or its first tasks die on a refused connection.
All of them listen on the loopback alone; the scheduler's log server cannot, so it is left out (on one
machine the API reads the log files itself).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import httpx

from bloomery.cluster.credentials import credentials
from bloomery.config.settings import Settings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Service:
    """A process that the supervisor starts, watches, and starts again when it dies."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready: Callable[[], bool]
    after: tuple[str, ...] = ()
    once: bool = False
    """Runs to its end before those that wait for it start."""
    essential: bool = True
    """A run can start as soon as all essential services are ready."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Setting that moves it -> port."""


def services(settings: Settings) -> list[Service]:
    """All services of this profile, each after those it waits for."""
    from spark_jobs.engine import server_command

    argv, env = server_command(settings)
    spark = Service(
        "spark",
        tuple(argv),
        env,
        ready=lambda: _listens(settings.spark_port),
        ports={"BLOOMERY_SPARK_PORT": settings.spark_port, "BLOOMERY_SPARK_UI_PORT": settings.spark_ui_port},
    )
    return [*_airflow(settings), spark, _mlflow(settings)]


def _mlflow(settings: Settings) -> Service:
    folder = settings.home / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    database = settings.mlflow_database or f"sqlite:///{folder}/mlflow.db"
    argv = [
        sys.executable,
        "-P",
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(settings.mlflow_port),
    ]
    argv += ["--workers", "1", "--backend-store-uri", database, "--no-serve-artifacts"]
    argv += ["--default-artifact-root", (folder / "artifacts").as_uri()]
    return Service(
        "mlflow",
        tuple(argv),
        # job runners are for MLflow's own evaluations, and hold a gigabyte
        {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        ready=lambda: _answers(f"{settings.mlflow_url}/health"),
        essential=False,
        ports={"BLOOMERY_MLFLOW_PORT": settings.mlflow_port},
    )


def airflow_environment(settings: Settings) -> dict[str, str]:
    """What every Airflow process of this deployment is started with."""
    home, secret = settings.home / "airflow", credentials(settings.home)
    home.mkdir(parents=True, exist_ok=True)
    passwords = home / "passwords.json"
    if not passwords.exists():
        with open(os.open(passwords, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            json.dump({secret["user"]: secret["password"]}, file)
    options = {
        "CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "8",
        "CORE__FERNET_KEY": secret["fernet_key"],
        "CORE__EXECUTION_API_SERVER_URL": f"{settings.airflow_url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{secret['user']}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "DATABASE__SQL_ALCHEMY_CONN": settings.airflow_database or f"sqlite:///{home}/airflow.db",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(settings.airflow_port),
        "API__BASE_URL": settings.airflow_url,
        "API__WORKERS": "1",
        "API__SECRET_KEY": secret["api_secret"],
        "API_AUTH__JWT_SECRET": secret["jwt_secret"],
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "WORKERS__EXECUTION_API_TIMEOUT": "60",
        "WORKERS__EXECUTION_API_RETRIES": "10",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    return {
        **os.environ,
        **{f"AIRFLOW__{name}": value for name, value in options.items()},
        "AIRFLOW_HOME": str(home),
        "BLOOMERY_HOME": str(settings.home),
        "PYTHONSAFEPATH": "1",
        "NO_COLOR": "1",
    }


def _airflow(settings: Settings) -> list[Service]:
    env = airflow_environment(settings)
    stamp = settings.home / "airflow" / "migrated"
    database = env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    wanted = hashlib.sha256(f"{version('apache-airflow')} {database}".encode()).hexdigest()

    def migrated() -> bool:
        lost = database.startswith("sqlite") and not Path(database.removeprefix("sqlite:///")).exists()
        return stamp.exists() and stamp.read_text() == wanted and not lost

    def command(*arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "airflow", *arguments)

    def healthy(component: str) -> Callable[[], bool]:
        return lambda: _health(settings).get(component, {}).get("status") == "healthy"

    migrate = f"{sys.executable} -m airflow db migrate && printf %s {wanted} > '{stamp}'"
    return [
        Service("airflow-database", ("/bin/sh", "-c", migrate), env, ready=migrated, once=True),
        Service(
            "airflow-api",
            command("api-server"),
            env,
            ready=healthy("metadatabase"),
            after=("airflow-database",),
            ports={"BLOOMERY_AIRFLOW_PORT": settings.airflow_port},
        ),
        Service(
            "airflow-pools",
            (sys.executable, "-P", "-m", "bloomery.airflow.pools"),
            env,
            ready=lambda: False,
            after=("airflow-api",),
            once=True,
        ),
        Service(
            "airflow-dag-processor",
            command("dag-processor"),
            env,
            healthy("dag_processor"),
            after=("airflow-api",),
        ),
        Service(
            "airflow-scheduler",
            command("scheduler", "--skip-serve-logs"),
            env,
            healthy("scheduler"),
            after=("airflow-api",),
        ),
        Service(
            "airflow-triggerer",
            command("triggerer", "--skip-serve-logs"),
            env,
            healthy("triggerer"),
            after=("airflow-scheduler",),
            essential=False,
        ),
    ]


def _health(settings: Settings) -> dict[str, dict[str, str]]:
    try:
        return dict(httpx.get(f"{settings.airflow_url}/api/v2/monitor/health", timeout=5).json())
    except (httpx.HTTPError, ValueError):
        return {}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
