"""Peers, each in a virtual environment of its own: they are measured and compared, and never imported."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from subprocess import PIPE

from benchmarks.memory import Peak
from bloomery.config.settings import settings

ROOT = Path(__file__).parents[1]
CORPUS = ROOT.parent / "shared" / "data" / "docs-corpus"
DATATROVE = ("datatrove==0.10.1", "spacy==3.8.18", "tokenizers==0.23.3", "orjson", "regex", "xxhash==3.5.0")
READERS = (
    *("ai2-olmo-core==3.0.0", "datatrove==0.10.1", "megatron-core==0.16.1", "mosaicml-streaming==0.13.0"),
    # What they import, beside what they borrow.
    *("bettermap==1.3.1", "cached-path==1.8.10", "cramjam==2.14.0", "dataclass-extensions==0.5.0"),
    *("google-api-core==2.44.0", "google-cloud-core==2.8.0", "google-cloud-storage==3.17.1"),
    *("google-crc32c==1.9.0", "google-resumable-media==2.11.0", "loguru==0.7.3", "proto-plus==1.29.0"),
    *("python-snappy==0.7.3", "torchvision==0.28.0", "xxhash==4.1.0", "zstd==1.5.7.2"),
)
"""Trainers' own readers of shards; borrowed are torch (6 GB), numpy and their like."""
LITDATA = ("litdata==0.2.76", "lightning-utilities==0.15.3")
"""Borrows the same."""


def peer(name: str, packages: tuple[str, ...], borrow: bool = False) -> Path:
    """The interpreter of a peer's environment, made when it is first asked for.

    Args:
        name: of the environment.
        packages: what is installed in it.
        borrow: leaves out what they depend on, and lets them import ours where they have none.
    """
    folder = settings().home.resolve() / "peers" / name
    python = folder / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    ready, wanted = folder / ".ready", "\n".join(packages)
    options = ["--no-deps"] if borrow else []
    if not ready.exists() or ready.read_text() != wanted:
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python, *options]
        subprocess.run([*install, *packages], check=True)
        if borrow:
            ours = [entry for entry in sys.path if Path(entry).name == "site-packages"]
            theirs = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
            (theirs / "borrowed.pth").write_text("\n".join(ours) + "\n")
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
