"""Run by datatrove's interpreter: its filters of FineWeb over JSON lines, each with a file of what it drops.

    python datatrove_filters.py FOLDER-OF-JSONL-GZ OUTPUT

Prints {"seconds": ...}; OUTPUT/kept and OUTPUT/dropped/<filter> hold the documents, with the reason.
"""

from __future__ import annotations

import json
import sys
import time

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

FILTERS = {
    "gopher_repetition": GopherRepetitionFilter,
    "gopher": GopherQualityFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}


def main(source: str, output: str) -> None:
    """Runs the filters with four tasks on two workers."""
    filters = [
        kind(exclusion_writer=JsonlWriter(f"{output}/dropped/{name}")) for name, kind in FILTERS.items()
    ]
    pipeline = [JsonlReader(source, glob_pattern="*.jsonl.gz"), *filters, JsonlWriter(f"{output}/kept")]
    began = time.monotonic()
    LocalPipelineExecutor(pipeline, tasks=4, workers=2, logging_dir=f"{output}/logs").run()
    print(json.dumps({"seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(*sys.argv[1:])
