"""datatrove's MinHash in its four stages: FOLDER of JSON lines -> ids that it keeps, in OUTPUT/kept.txt."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig

TASKS, WORKERS = 4, 2


def main(folder: str, output: str) -> None:
    """Runs the stages and prints their seconds."""
    config = MinhashConfig(hash_config=HashConfig(), n_grams=5, num_buckets=14, hashes_per_bucket=8)
    reader = JsonlReader(folder, glob_pattern="*.jsonl")
    stages = [
        ([reader, MinhashDedupSignature(f"{output}/signatures", config=config)], TASKS),
        (
            [MinhashDedupBuckets(f"{output}/signatures", f"{output}/buckets", config=config)],
            config.num_buckets,
        ),
        ([MinhashDedupCluster(f"{output}/buckets", f"{output}/remove", config=config)], 1),
        ([reader, MinhashDedupFilter(f"{output}/remove"), JsonlWriter(f"{output}/kept")], TASKS),
    ]
    began = time.monotonic()
    for number, (pipeline, tasks) in enumerate(stages):
        logs = f"{output}/logs-{number}"
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=min(WORKERS, tasks), logging_dir=logs).run()
    seconds = time.monotonic() - began
    kept = []
    for path in sorted(Path(output, "kept").glob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            kept += [json.loads(line)["id"] for line in lines]
    Path(output, "kept.txt").write_text("\n".join(kept))
    print(json.dumps({"seconds": seconds, "kept": len(kept)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
