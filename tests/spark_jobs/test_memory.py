"""The largest document that is measured takes less than 300 MB beyond the worker's own, whatever it holds."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from bloomery.config.cleaning import MeasureConfig

SIZE = MeasureConfig().max_document_bytes
DRAW = random.Random(1)
MEASURE = """
import sys
from pathlib import Path
from bloomery.config.cleaning import MeasureConfig
from spark_jobs.measure import READ, measure_rows

def measured(text):
    row = dict.fromkeys(READ) | {"status": "kept", "media_type": "text/plain", "text": text}
    return measure_rows([row], MeasureConfig())[0]

def peak():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1024

measured("A short text, é, with 1 number. " * 20)
base = peak()
assert "kept" in measured(Path(sys.argv[1]).read_text())
print(peak() - base)
"""


def prose():
    words = ["".join(DRAW.choices("etaoinshrdlu", k=DRAW.randint(1, 9))) for _ in range(100_000)]
    return " ".join(DRAW.choice(words) + "\n" * (DRAW.random() < 0.02) for _ in range(SIZE // 7))


TEXTS = {
    "prose": prose,
    "hex": lambda: "\n".join(f"{DRAW.getrandbits(256):064x}" for _ in range(SIZE // 65)),
    "no space": lambda: "x7" * (SIZE // 2),
    "two-letter lines": lambda: "\n".join("".join(DRAW.choices("abcdefgh", k=2)) for _ in range(SIZE // 3)),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", TEXTS)
def test_a_document_of_16_mb_takes_less_than_300_mb(tmp_path, kind):
    path = tmp_path / "text"
    path.write_text(TEXTS[kind]()[:SIZE])
    command = [sys.executable, "-P", "-c", MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"{kind}: {float(done.stdout):.0f} MB")
    assert float(done.stdout) < 300
