"""Corpora of the benchmarks: the documents of shared/data/docs-corpus, and as many perturbed copies as
asked for."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO, cast

from benchmarks.peers import CORPUS


def documents() -> Iterator[dict[str, str]]:
    """The 5,694 documents (30 MB of text); where they are absent, says so and ends."""
    parts = sorted(CORPUS.glob("*.jsonl.gz"))
    if not parts:
        sys.exit(f"{CORPUS} is absent: this benchmark needs it")
    for part in parts:
        with gzip.open(part, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def perturbed(megabytes: float, seed: int = 1) -> Iterator[dict[str, str]]:
    """Documents until they hold `megabytes` of text: the corpus, then copies of it with words replaced.

    Each copy of a document draws its own share of replaced words, 0 to 30 %, so near duplicates of every
    Jaccard from 1 to about 0.1 occur.
    """
    held, copy, limit = 0, 0, megabytes * 1e6
    base = list(documents())
    while held < limit:
        for number, row in enumerate(base):
            text = (
                row["text"] if copy == 0 else _perturb(row["text"], random.Random(f"{seed}/{copy}/{number}"))
            )
            yield {"id": f"{copy}-{number}", "text": text}
            held += len(text.encode())
            if held >= limit:
                return
        copy += 1


def up_to(rows: Iterator[dict[str, str]], megabytes: float) -> Iterator[dict[str, str]]:
    """The first rows, until they hold `megabytes` of text; `rows` goes on behind them."""
    held = 0
    while held < megabytes * 1e6:
        row = next(rows)
        held += len(row["text"].encode())
        yield row


def write(folder: Path, rows: Iterable[dict[str, str]], files: int = 4, gz: bool = False) -> tuple[int, int]:
    """Writes rows as JSON lines over `files` files, gzipped or not; (documents, bytes of text)."""
    folder.mkdir(parents=True, exist_ok=True)
    count = size = 0
    with ExitStack() as stack:
        outputs = [stack.enter_context(_open(folder / f"part-{number:03d}", gz)) for number in range(files)]
        for row in rows:
            outputs[count % files].write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
            size += len(row["text"].encode())
    return count, size


def _open(path: Path, gz: bool) -> TextIO:
    if gz:
        return cast(TextIO, gzip.open(f"{path}.jsonl.gz", "wt", compresslevel=3, encoding="utf-8"))
    return open(f"{path}.jsonl", "w", encoding="utf-8")


def _perturb(text: str, draw: random.Random) -> str:
    words = text.split(" ")
    share = draw.random() ** 3 * 0.3  # most copies are near, some are far
    for position in range(len(words)):
        if draw.random() < share:
            words[position] = f"w{draw.getrandbits(20):x}"
    return " ".join(words)
