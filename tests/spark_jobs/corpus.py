"""A small fixed corpus, written anew by each test that needs it: its digests are frozen in golden.json."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import zstandard

from bloomery.config.cleaning import CleanConfig, MeasureConfig
from bloomery.config.corpus import (
    DecontaminateConfig,
    DedupConfig,
    LedgerConfig,
    MinHashConfig,
    ProfileConfig,
    ShardConfig,
    TokenizerConfig,
)
from bloomery.config.sources import IngestConfig, SnapshotConfig, Source

SUBJECTS = ["The baker", "A sailor", "My neighbour", "The old teacher", "One engineer", "The gardener"]
VERBS = [
    "walked to",
    "looked at",
    "dreamed of",
    "talked about",
    "wrote a letter about",
    "carried stones from",
]
PLACES = [
    "the river",
    "the harbour",
    "a quiet village",
    "the long bridge",
    "the winter market",
    "the mountain",
]
ENDS = [
    "and came back with a story that nobody would have believed.",
    "while the rain was falling on the roofs of the houses.",
    "because there was nothing else to be done with the day.",
    "and the children of the town followed with great interest.",
    "before the last train of the evening had left the station.",
]

CONFIGS = {
    "ingest": IngestConfig(max_record_bytes=20_000),
    "measure": MeasureConfig(),
    # The texts are made of few phrases, which Gopher's repetition rules would see.
    "clean": CleanConfig(chain=("document", "language", "gopher")),
    "signatures": MinHashConfig(),
    "pairs": MinHashConfig(),
    "dedup": DedupConfig(held_out=0.2),
    "decontaminate": DecontaminateConfig(),
    "ledger": LedgerConfig(),
    "profile": ProfileConfig(),
    "tokenizer": TokenizerConfig(vocab_size=400),
    "shard": ShardConfig(target_bytes=4096),
}


def prose(number: int, sentences: int = 9) -> str:
    """English text, another for each number."""
    made = []
    for position in range(sentences):
        mixed = (number * 7919 + position * 104_729) ^ (number * position * 31)
        made.append(
            f"{SUBJECTS[mixed % 6]} {VERBS[mixed // 6 % 6]} {PLACES[mixed // 36 % 6]} "
            f"on day {number * 17 + position} {ENDS[mixed // 216 % 5]}"
        )
    return " ".join(made)


def write_corpus(folder: Path) -> None:
    """Writes the corpus: every format, every fate of a record."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": n, "url": f"https://example.org/{n}", "text": prose(n)} for n in range(60)]
    rows += [{"id": f"copy-{n}", "text": prose(n).upper()} for n in range(0, 60, 10)]
    rows += [{"id": f"near-{n}", "text": prose(n) + " That was all."} for n in range(5, 60, 10)]
    rows += [{"id": "short", "text": "Too short to keep."}, {"id": "german", "text": GERMAN}]
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    broken = [
        b'{"text": "cut',
        b'["a", "list"]',
        b'{"text": null}',
        b'{"text": "\\ud800"}',
        b'{"text": "\xe9"}',
    ]
    broken.append(json.dumps({"text": "long " * 5000}).encode())
    (folder / "plain.jsonl").write_bytes(b"\n".join(lines[:40]) + b"\n\n")
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[40:] + broken), mtime=0))
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[:40]), mtime=0)[:-200])
    (folder / "packed.txt.zst").write_bytes(zstandard.compress(prose(100).encode()))
    (folder / "bom.txt").write_bytes(b"\xef\xbb\xbf" + prose(101).encode())
    (folder / "notes.md").write_text(f"# Notes\n\n{prose(102)}\n")
    paragraphs = "".join(f"<p>{prose(n, 4)}</p>" for n in (103, 104))
    (folder / "page.html").write_text(f"<html><body><nav>menu</nav><main>{paragraphs}</main></body></html>")
    (folder / "module.py").write_text(f'"""{prose(105)}"""\n\ndef f():\n    """{prose(106, 2)}"""\n')
    (folder / "mojibake.txt").write_text(prose(107).replace("a quiet", "a cafÃ©"))
    (folder / "picture.png").write_bytes(bytes(range(256)))


GERMAN = " ".join(["Der alte Lehrer ging am Abend zum Hafen und dachte an die Reise über das Meer."] * 8)


def snapshot_config(folder: Path) -> SnapshotConfig:
    """The corpus as one source."""
    return SnapshotConfig(sources=(Source(name="corpus", uri=str(folder)),))
