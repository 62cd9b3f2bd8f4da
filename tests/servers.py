"""Real servers for the tests, on free ports: SeaweedFS, moto, PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.deployment import free_port, until

KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "testing-only", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[str]:
    """The endpoint of a SeaweedFS with the keys above."""
    folder.mkdir(parents=True, exist_ok=True)
    identity = {
        "name": "tester",
        "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    weed = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
    command = [
        weed,
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={folder / 'data'}",
        "-filer",
        "-s3",
    ]
    command += [f"-s3.config={config}", "-volume.max=0", "-master.telemetry=false"]
    for name, port in ports.items():
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={free_port()}"]
    with open(folder / "weed.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        endpoint = f"http://127.0.0.1:{ports['s3']}"
        until("SeaweedFS answers", lambda: _answers(f"{endpoint}/status"), timeout=60)
        yield endpoint
    finally:
        server.kill()  # it ignores SIGTERM for over ten seconds
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False


def make_bucket(endpoint: str, name: str) -> None:
    """A new bucket; a server that has just started may refuse at first."""
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint)
    for _ in range(30):
        try:
            client.create_bucket(Bucket=name)
            client.put_object(Bucket=name, Key="warm", Body=b"x")
            return
        except Exception:
            time.sleep(0.5)
    client.create_bucket(Bucket=name)


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """SQLAlchemy's URL of the server of a new cluster, without a database."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    folder.mkdir(parents=True)
    if user:
        shutil.chown(folder, "postgres")
        folder.chmod(0o755)
        for parent in folder.parents:
            if parent.stat().st_mode & 0o005 != 0o005 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o005)
    data, port = folder / "data", free_port()
    subprocess.run(
        [*user, binaries / "initdb", "-D", data, "-U", "bloomery", "-A", "trust"],
        check=True,
        capture_output=True,
    )
    options = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c max_connections=200"
    )
    start = [*user, binaries / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start"]
    subprocess.run(start, check=True, capture_output=True)
    try:
        yield f"postgresql+psycopg2://bloomery@127.0.0.1:{port}"
    finally:
        subprocess.run(
            [*user, binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop"],
            capture_output=True,
            check=False,
        )


def make_database(server: str, name: str) -> str:
    """SQLAlchemy's URL of a new database."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{server}/{name}"
