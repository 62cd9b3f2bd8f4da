"""Run by datatrove's interpreter: its tokenization of JSON lines, documents shuffled within each file.

    python datatrove_tokenize.py FOLDER-OF-JSONL TOKENIZER-JSON OUTPUT

Prints {"seconds": ..., "tokens": ...}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

SEPARATOR = "<|endoftext|>"


def main(source: str, tokenizer: str, output: str) -> None:
    """Tokenizes with four tasks on two workers."""
    pipeline = [
        JsonlReader(source, glob_pattern="*.jsonl"),
        DocumentTokenizer(f"{output}/tokens", tokenizer, eos_token=SEPARATOR, seed=1),
    ]
    began = time.monotonic()
    LocalPipelineExecutor(pipeline, tasks=4, workers=2, logging_dir=f"{output}/logs").run()
    seconds = time.monotonic() - began
    size = sum(path.stat().st_size for path in Path(output, "tokens").rglob("*.ds"))
    print(json.dumps({"seconds": seconds, "tokens": size // 2}))


if __name__ == "__main__":
    main(*sys.argv[1:])
