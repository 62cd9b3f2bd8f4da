"""Writing and opening a shard of 256 MiB in little memory: measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

WRITING = """
import json, resource, sys
from pathlib import Path
import numpy as np
from bloomery.shards.dataset import Policy
from bloomery.shards.keys import keys
from bloomery.shards.side import ORIGIN
from bloomery.shards.write import Documents, ShardWriter

def rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

policy = Policy.of("0" * 64, 50_000, 0, 1)
draw = np.random.default_rng(0)
ids = draw.integers(0, 256, (1 << 17, 16), np.uint8)
found = keys(ids, policy.seed)
ids = ids[np.argsort(found)]
tokens = draw.integers(0, 50_000, 1 << 18).astype(np.uint16)
origins = np.zeros(256, ORIGIN)
lengths = np.full(256, 1024)
before = rss()
with ShardWriter(Path(sys.argv[1]), policy) as writer:
    for start in range(0, len(ids), 256):
        writer.append(Documents(ids[start : start + 256], tokens, lengths, 9, ["a"] * 256, origins))
    info = writer.finish()
print(json.dumps({"bytes": 2 * info.tokens, "writing": rss() - before, "info": info}))
"""

OPENING = """
import json, sys
from pathlib import Path
import numpy as np
from bloomery.shards.shard import Shard
from bloomery.shards.table import ShardInfo

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

info = ShardInfo(*json.loads(sys.argv[2]))
before = anonymous()
shard = Shard.open(Path(sys.argv[1]), info, np.dtype("<u2"))
opened = anonymous() - before
shard.read(0, info.tokens)
print(json.dumps({"opened": opened, "read": anonymous() - before}))
"""


def run(code: str, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_shard_of_256_mib_is_written_and_read_in_little_memory(tmp_path):
    written = run(WRITING, str(tmp_path))
    assert written["bytes"] == 256 << 20
    assert written["writing"] < 64, "MiB"
    read = run(OPENING, str(tmp_path), json.dumps(written["info"]))
    assert read["opened"] < 16 and read["read"] < 16, (
        "MiB; pages of the mapped file are not the process's own"
    )
