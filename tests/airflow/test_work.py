"""What the first task of a run refuses, before the data stages have spent anything."""

from __future__ import annotations

import pytest

from bloomery.airflow import work
from bloomery.artifacts.store import LocalStore
from bloomery.errors import BloomeryError


def config(folder, train):
    path = folder / "config.yaml"
    source = "{snapshot: {sources: [{name: a, uri: /data}]}}"
    path.write_text(f"name: x\ncorpus: {source}\ntrain: {train}\n")
    return str(path)


def test_a_checkpoint_to_begin_with_is_looked_for_before_the_data_stages(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "store", lambda: LocalStore(tmp_path / "store"))
    unknown = "0" * 64
    begins = config(tmp_path, f"{{init_from: {{checkpoint: '{unknown}'}}}}")
    with pytest.raises(BloomeryError, match=f"train.init_from.checkpoint: {unknown} is no checkpoint"):
        work.begin(begins, "release")
    assert work.begin(begins, "corpus")["name"] == "x"  # nothing is trained
    assert work.begin(config(tmp_path, "{}"), "release")["name"] == "x"
