from __future__ import annotations

from dataclasses import dataclass

import pytest

from bloomery.airflow import work
from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.refs import move_ref, read_ref
from bloomery.artifacts.store import LocalStore
from bloomery.config.run import RunConfig
from bloomery.config.settings import settings
from tests.training.ranks import Ranks
from tests.training.world import SPREAD, TINY, World, make_world, put

CONFIG = RunConfig.model_validate(
    {
        "name": "tiny",
        "corpus": {"snapshot": {"sources": [{"name": "here", "uri": "builtin://python"}]}},
        "train": TINY.model_dump(mode="json"),
        "execution": {"parallelism": {"ranks": 2, "micro_batch": 2}},
    }
)


@dataclass
class Trained:
    """A finished run."""

    world: World
    ranks: Ranks
    config: str
    train: str
    """Manifest of stage train."""

    @property
    def upstream(self) -> dict[str, str]:
        """Manifests of the run's stages."""
        return {**self.world.upstream, "train": self.train}


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    """A run of 20 steps on two ranks, three of its checkpoints live."""
    world = make_world(tmp_path_factory.mktemp("store"))
    data = canonical(CONFIG.model_dump(mode="json"))
    world.store.put_new(f"cas/{sha256(data)}", data)
    ranks = Ranks(world, tmp_path_factory.mktemp("ranks"), "a" * 64)
    assert ranks.train(ranks.job(TINY, SPREAD)) == [None, None]
    ref = read_ref(world.store, f"runs/{ranks.run}/head")
    move_ref(world.store, ref.name, ref.value | {"config": sha256(data)}, ref)
    weights = ranks.journal.weights(ranks.at(20))
    return Trained(world, ranks, sha256(data), put(world.store, "train", {}, {"checkpoint": weights}))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A deployment's home of this test's own, where no MLflow listens."""
    monkeypatch.setenv("BLOOMERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BLOOMERY_MLFLOW_PORT", "1025")
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty store, which the work of the DAGs is done in."""
    made = LocalStore(tmp_path / "store")
    monkeypatch.setattr(work, "store", lambda: made)
    return made
