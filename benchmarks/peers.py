"""Peers, each in a virtual environment of its own: they are measured and compared, and never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

from benchmarks.memory import Peak
from bloomery.config.settings import settings

ROOT = Path(__file__).parents[1]
CORPUS = ROOT.parent / "shared" / "data" / "docs-corpus"
DATATROVE = ("datatrove==0.10.1", "spacy==3.8.18", "tokenizers==0.23.3", "orjson", "regex", "xxhash==3.5.0")


def peer(name: str, packages: tuple[str, ...]) -> Path:
    """The interpreter of a peer's environment, made when it is first asked for."""
    folder = settings().home.resolve() / "peers" / name
    python = folder / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    ready, wanted = folder / ".ready", "\n".join(packages)
    if not ready.exists() or ready.read_text() != wanted:
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
        ready.write_text(wanted)
    return python


def run_peer(name: str, packages: tuple[str, ...], script: str, *arguments: str) -> dict[str, float]:
    """What a script of this folder prints in its last line, as JSON, in a peer's environment; and "peak_mb",
    the largest sum of its processes' memory (PSS)."""
    command = [peer(name, packages), "-P", Path(__file__).parent / script, *arguments]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process, Peak(process.pid) as peak:
        answer, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{script} failed:\n{errors[-3000:]}")
    found: dict[str, float] = json.loads(answer.strip().splitlines()[-1])
    return found | {"peak_mb": peak.mb["all"]}
