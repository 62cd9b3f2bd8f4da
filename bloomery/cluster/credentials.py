"""Logins and keys, made at first start and kept in HOME/credentials.json, readable by the owner only."""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path


def credentials(home: Path) -> dict[str, str]:
    """The deployment's secrets, made once: admin's password, Airflow's fernet key, JWT secret and API
    secret."""
    path = home / "credentials.json"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        made = {
            "user": "admin",
            "password": secrets.token_urlsafe(12),
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "jwt_secret": secrets.token_hex(32),
            "api_secret": secrets.token_hex(32),
        }
        temporary = path.with_suffix(f".{os.getpid()}")
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump(made, file)
        temporary.replace(path)
    return dict(json.loads(path.read_text()))
