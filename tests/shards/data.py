"""Documents and datasets that the tests of this room share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from bloomery.shards.dataset import Policy
from bloomery.shards.write import Document, write_dataset

POLICY = Policy.of("ab" * 32, vocab_size=1000, eos_id=0, seed=1)


def name(number: int | str) -> str:
    """An id of a document."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def documents(count: int, seed: int = 0, longest: int = 300) -> list[Document]:
    """Documents of heavy-tailed lengths, of a few hosts and files."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(longest, 1 + random.pareto(0.8, count) * 20).astype(int).tolist()
    return [
        Document(
            id=name(f"{seed}/{number}"),
            tokens=np.append(random.integers(1, POLICY.vocab_size, length - 1), POLICY.eos_id),
            bytes=4 * length,
            url=f"https://site{number % 7}.org/{number}" if number % 3 else None,
            path=f"part-{number % 5}.jsonl.gz",
            member=None if number % 5 else 100 * (number % 5),
            offset=37 * number,
            length=4 * length + 9,
        )
        for number, length in enumerate(lengths)
    ]


def dataset(folder: Path, target_bytes: int = 2048) -> str:
    """Two sources, two splits; returns the digest."""
    splits = {
        "train": {"web": documents(200), "books": documents(40, seed=1)},
        "held_out": {"web": documents(20, seed=2)},
    }
    return write_dataset(folder, splits, POLICY, target_bytes=target_bytes)
