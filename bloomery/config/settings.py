"""Settings of a deployment: where the services of this profile stand. From BLOOMERY_* in the environment; no
secret is here.

A run's config never names any of these, so the same config runs on a laptop and on a cluster.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where the services stand and where they keep their state."""

    model_config = SettingsConfigDict(env_prefix="BLOOMERY_", frozen=True, extra="ignore")

    home: Path = Field(
        Path(".bloomery"), validate_default=True, description="folder of state, logs, logins, downloaded jars"
    )
    store: str = Field("", description="artifact store: a folder or s3://bucket/prefix; empty: HOME/store")
    s3_endpoint: str | None = Field(
        None, description="endpoint of an S3 store that is not AWS, http://host:port"
    )
    spark_port: int = Field(15002, ge=1024, le=65535, description="port of the Spark Connect engine")
    spark_ui_port: int = Field(4040, ge=1024, le=65535, description="port of Spark's own UI")
    spark_memory: str = Field("2g", description="heap of the Spark engine")
    spark_master: str = Field("local[2]", description="master of the Spark engine")
    airflow_port: int = Field(8080, ge=1024, le=65535, description="port of Airflow's UI and API")
    airflow_database: str = Field(
        "", description="SQLAlchemy URL of Airflow's database; empty: SQLite below HOME"
    )
    mlflow_port: int = Field(5000, ge=1024, le=65535, description="port of MLflow")
    mlflow_database: str = Field(
        "", description="SQLAlchemy URL of MLflow's database; empty: SQLite below HOME"
    )

    @field_validator("home", mode="after")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()

    @property
    def store_uri(self) -> str:
        """The store's URI, the default filled in."""
        return self.store or str(self.home / "store")

    @property
    def mlflow_url(self) -> str:
        """Where every writer reaches MLflow."""
        return f"http://127.0.0.1:{self.mlflow_port}"

    @property
    def airflow_url(self) -> str:
        """Where Airflow's UI and API answer."""
        return f"http://127.0.0.1:{self.airflow_port}"


@cache
def settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
