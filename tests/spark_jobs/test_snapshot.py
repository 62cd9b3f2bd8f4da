"""Snapshots: what is listed, when it is a hit, what a date means, and what each wrong source is told."""

from __future__ import annotations

import datetime
import os

import pytest

from bloomery.artifacts.canonical import digest
from bloomery.artifacts.refs import list_refs
from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import LocalStore
from bloomery.config.sources import SnapshotConfig, Source
from spark_jobs.parts import read_parts
from spark_jobs.readers.builtin import base_distributions, python_files
from spark_jobs.readers.listing import SourceError
from spark_jobs.snapshot import SnapshotError, read_listing, take

TODAY = datetime.datetime.now(datetime.UTC).date()


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus" / "b").mkdir(parents=True)
    for name in ("z.txt", "a.jsonl", "b/c.md", ".hidden"):
        (tmp_path / "corpus" / name).write_text(name)
    return tmp_path / "corpus"


def config(uri, **more):
    return SnapshotConfig(sources=(Source(name="s", uri=str(uri), **more),))


def listed(store, outcome):
    parts = read_parts(artifact(store, outcome.digest, "files"))
    read = [(part, read_listing(artifact(store, part.manifest, "files"))[0]) for part in parts]
    files = [file for part, found in read for file in found if (file.source, file.path) not in part.without]
    return {file.path: file.format for file in files}


def test_a_folder_a_file_and_a_glob(store, corpus):
    everything = {"a.jsonl": "jsonl", "b/c.md": "markdown", "z.txt": "text"}
    for uri in (corpus, f"file://{corpus}", corpus / "**" / "*.*"):
        found = listed(store, take(config(uri), store, None, print))
        assert {path: kind for path, kind in found.items() if not path.startswith(".")} == everything
    assert listed(store, take(config(corpus / "z.txt"), store, None, print)) == {"z.txt": "text"}
    assert listed(store, take(config(corpus, format="html"), store, None, print))["z.txt"] == "html"


def test_an_unchanged_listing_is_a_hit_and_a_changed_one_is_not(store, corpus):
    first = take(config(corpus), store, None, print)
    assert not first.hit and take(config(corpus), store, None, print).hit
    os.utime(corpus / "z.txt", ns=(1, 1))
    changed = take(config(corpus), store, None, print)
    assert not changed.hit and changed.digest != first.digest


def test_dates(store, corpus):
    chosen, today, past = config(corpus), TODAY.isoformat(), (TODAY - datetime.timedelta(3)).isoformat()
    first = take(chosen, store, today, print)
    ref = f"snapshots/{digest(chosen.model_dump(mode='json'))}/{today}"
    assert {r.name: r.value["digest"] for r in list_refs(store, "snapshots/")} == {ref: first.digest}
    (corpus / "new.txt").write_text("new")
    second = take(chosen, store, today, print)
    assert [r.value["digest"] for r in list_refs(store, "snapshots/")] == [second.digest] != [first.digest]
    with pytest.raises(SnapshotError, match=f"recorded on {past}"):
        take(chosen, store, past, print)
    old = store.get(f"refs/{ref}")
    store.put_new(f"refs/{ref.replace(today, past)}", old.data)
    (corpus / "newer.txt").write_text("newer")
    replayed = take(chosen, store, past, print)
    assert replayed.hit and replayed.digest == second.digest
    with pytest.raises(SnapshotError, match="lies ahead"):
        take(chosen, store, (TODAY + datetime.timedelta(2)).isoformat(), print)
    with pytest.raises(SnapshotError, match="not a date"):
        take(chosen, store, "yesterday", print)


def test_wrong_sources_are_named(store, corpus, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"source s: .*empty holds no files"):
        take(config(tmp_path / "empty"), store, None, print)
    with pytest.raises(SourceError, match=r"source s: .*absent does not exist"):
        take(config(tmp_path / "absent"), store, None, print)
    with pytest.raises(ValueError, match=r"scheme 'ftp' is not known; allowed: a path, file://, s3://"):
        config("ftp://host/file")
    with pytest.raises(ValueError, match="not a built-in source"):
        config("builtin://ruby")


def test_the_builtin_source_is_the_environments_own_text(store):
    names = base_distributions()
    assert names == sorted(names) and "numpy" in names
    files = list(python_files())
    assert len(files) > 500 and len({name for name, _, _ in files}) == len(files)
    kinds = {kind for _, _, kind in files}
    assert {"metadata", "python", "text", "markdown"} <= kinds
    outcome = take(config("builtin://python"), store, None, print)
    assert outcome.manifest.outputs["files"].documents == len(files)
