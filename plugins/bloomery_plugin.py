"""Bloomery in Airflow's web server.

Airflow runs every Python file of this folder under its bare name, in each of its processes: there is this one
only, and it imports nothing until a page is asked for.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The app of our pages (ASGI)."""
    from bloomery.airflow.pages import app

    await app(scope, receive, send)


class BloomeryPlugin(AirflowPlugin):
    """Reports below /bloomery."""

    name = "bloomery"
    fastapi_apps = [{"name": "Bloomery", "app": pages, "url_prefix": "/bloomery"}]  # noqa: RUF012
