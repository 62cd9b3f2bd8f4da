"""What is missing or unreachable, each with its remedy."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from bloomery.artifacts.store import open_store, probe
from bloomery.config.settings import Settings
from bloomery.errors import BloomeryError


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    what: str
    well: bool
    remedy: str = ""


_PLANES = {
    "orchestrator": ("airflow", "great_expectations", "mlflow"),
    "spark": ("pyspark", "delta", "resiliparse", "tokenizers"),
    "training": ("torch", "deepspeed", "safetensors", "transformers", "model_signing"),
}


def examine(settings: Settings) -> Iterator[Finding]:
    """Looks at packages, Java, jars, disk, store and services, in the order in which they are needed."""
    for plane, modules in _PLANES.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        found = f"packages of the {plane} plane" + (f": missing {', '.join(missing)}" if missing else "")
        yield Finding(
            found, not missing, f"pip install 'bloomery[{plane}]' -c constraints.txt (make setup does)"
        )
    yield from _java(settings)
    free = shutil.disk_usage(_existing(settings)).free / 1e9
    yield Finding(
        f"{free:.0f} GB free for {settings.home}", free > 5, "free space, or move it: BLOOMERY_HOME"
    )
    yield _store(settings)
    yield _http("Airflow", f"{settings.airflow_url}/api/v2/monitor/health")
    yield _http("MLflow", f"{settings.mlflow_url}/health")
    with socket.socket() as trial:
        trial.settimeout(2)
        open_ = trial.connect_ex(("127.0.0.1", settings.spark_port)) == 0
    yield Finding(f"Spark engine on port {settings.spark_port}", open_, "start it: bloomery up")


def _java(settings: Settings) -> Iterator[Finding]:
    from spark_jobs.jars import delta_jars
    from spark_jobs.java import java_home

    try:
        java = java_home(settings.home)
        yield Finding(f"Java: {java}", True)
        yield Finding(f"Delta's jars: {len(delta_jars(settings.home, java))}", True)
    except BloomeryError as error:
        yield Finding(error.what, False, error.remedy or "make setup")


def _existing(settings: Settings) -> str:
    folder = settings.home
    while not folder.exists():
        folder = folder.parent
    return str(folder)


def _store(settings: Settings) -> Finding:
    try:
        probe(open_store(settings.store_uri, settings.s3_endpoint))
    except BloomeryError as error:
        return Finding(error.what, False, error.remedy)
    return Finding(f"store {settings.store_uri}: conditional put and compare-and-swap hold", True)


def _http(name: str, url: str) -> Finding:
    try:
        well = httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        well = False
    return Finding(f"{name} at {url}", well, "start it: bloomery up")
