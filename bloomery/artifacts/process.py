"""Names a process so that another one on the same machine can tell later whether it still lives.

By start time in clock ticks since boot: a pid is given out again, and wall-clock start times move when the
clock is set.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path


def mark(pid: int | None = None) -> str:
    """Machine, pid and start of a process; of this one by default."""
    pid = os.getpid() if pid is None else pid
    return f"{_machine()} {pid} {_started(pid)}"


def local(marked: str) -> bool:
    """Whether the process ran on this machine, so that `alive` can tell."""
    return marked.split(" ", maxsplit=1)[0] == _machine()


def alive(marked: str) -> bool:
    """Whether the process of this machine that was marked so still runs."""
    _, pid, started = marked.split(" ")
    return bool(started) and _started(int(pid)) == started


def _machine() -> str:
    return f"{platform.node()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(pid: int) -> str:
    """Clock ticks since boot at which a process started; empty if there is none, or only its corpse."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]
