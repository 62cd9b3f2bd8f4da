from __future__ import annotations

import hashlib

import pytest

from bloomery.config.settings import settings
from tests.training.ranks import Ranks
from tests.training.world import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    """One tiny dataset for all tests."""
    return make_world(tmp_path_factory.mktemp("store"))


@pytest.fixture
def ranks(world, tmp_path, request) -> Ranks:
    """Attempts of a run of this test's own."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    return Ranks(world, tmp_path, name)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A deployment's home of this test's own, where no MLflow listens."""
    monkeypatch.setenv("BLOOMERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BLOOMERY_MLFLOW_PORT", "1025")
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()
