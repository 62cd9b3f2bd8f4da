"""Mirrors a release to MLflow's model registry: a version, an alias. An outage is only logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from training.mirror import open_client

if TYPE_CHECKING:
    from validation.release.promote import Release


def mirror(release: Release, log: Callable[[str], None]) -> None:
    """Registers a release; its source names the manifest, as MLflow refuses folders of others."""
    try:
        client = open_client()
        from mlflow.exceptions import MlflowException

        try:
            client.create_registered_model(release.name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        tags = {
            "bloomery.version": str(release.version),
            "bloomery.model": release.model,
            "bloomery.approver": release.approver,
            "bits_per_byte": f"{release.eval.bits_per_byte:.6f}",
        }
        version = client.create_model_version(
            release.name, f"bloomery://store/manifests/{release.digest}", tags=tags
        )
        client.set_registered_model_alias(release.name, "champion", version.version)
    except Exception as error:  # any: the release stands in the store
        log(f"MLflow does not show the release, it stands in the store: {error!s:.200}")
