"""Where a document stands: from its id to shard, tokens and origin, without a log, a table or Delta.

    id -> key -> in each stream the one shard whose range holds the key -> a search in its ids, sorted by key

A few pages of each stream's table and of one side file are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bloomery.artifacts.digests import file_digest
from bloomery.shards.dataset import Dataset, Stream
from bloomery.shards.format import DamagedError, ShardError
from bloomery.shards.keys import Ids, keys, parse_ids
from bloomery.shards.side import Side
from bloomery.shards.table import Names, ShardInfo


class UnknownDocumentError(ShardError):
    """The dataset does not hold a document."""


class Origin(NamedTuple):
    """Where a document was read: a range of the decoded bytes of a file; of Parquet its rows."""

    path: str
    """Of the file, as its source names it."""
    member: int | None
    """Offset of the compressed member; None where there is none."""
    offset: int
    length: int


def origin_of(names: Names, row: np.void) -> Origin:
    """What a row of a side file's origins says; `names` are those of its source's files."""
    member = int(row["member"])
    return Origin(
        path=names[int(row["file"])],
        member=None if member < 0 else member,
        offset=int(row["offset"]),
        length=int(row["length"]),
    )


class Located(NamedTuple):
    """A document in a dataset."""

    id: str
    split: str
    source: str
    shard: int
    """Number of its shard in the stream."""
    name: str
    """Of the shard."""
    position: int
    """Number of the document in the shard."""
    start: int
    """Its tokens are [start, stop) of the stream."""
    stop: int
    origin: Origin


def locate(dataset: Dataset, ids: Sequence[str], fetch: Callable[[str], Path] | None = None) -> list[Located]:
    """Where documents stand, in the order of `ids`.

    Args:
        dataset: of which root and tables are enough.
        ids: of documents.
        fetch: gives a local path of a file of the dataset; without it, all of them are in its folder.

    Raises:
        UnknownDocumentError: names those that the dataset does not hold.
        DamagedError: a side file is not what was written.
    """
    found = locate_known(dataset, ids, fetch)
    if missing := sorted(set(ids) - found.keys()):
        raise UnknownDocumentError(
            f"{dataset.folder} holds no document {', '.join(missing)}",
            "`bloomery explain` says what became of a document",
        )
    return [found[name] for name in ids]


def locate_known(
    dataset: Dataset, ids: Sequence[str], fetch: Callable[[str], Path] | None = None
) -> dict[str, Located]:
    """Where those documents stand that the dataset holds; arguments as of `locate`.

    Raises:
        DamagedError: a side file is not what was written.
    """
    get = fetch or (lambda name: dataset.folder / name)
    wanted = parse_ids(list(ids))
    found_keys = keys(wanted, dataset.manifest.policy.seed)
    found: dict[str, Located] = {}
    asked: list[tuple[Path, ShardInfo]] = []
    for stream in dataset.streams():
        numbers = np.searchsorted(stream.table.first_key, found_keys, "right") - 1
        for place in np.flatnonzero(numbers >= 0).tolist():
            if ids[place] not in found:
                number = int(numbers[place])
                info = stream.table[number]
                path = get(f"{stream.split}/{stream.source}/{info.name}.side")
                asked.append((path, info))
                side = Side.open(path)
                position = _search(side.ids, wanted[place : place + 1], dataset.manifest.policy.seed)
                if position is not None:
                    _check(path, info)
                    found[ids[place]] = _located(dataset, stream, number, side, position)
    if set(ids) - found.keys():
        for path, info in asked:
            _check(path, info)  # it may be a damaged file that does not hold them
    return found


def _search(ids: Ids, wanted: Ids, seed: int) -> int | None:
    """Position of one id [1, 16] among those of a shard, which are in the order of (key, id)."""
    goal = (int(keys(wanted, seed)[0]), wanted.tobytes())
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        here = ids[middle : middle + 1]
        low, high = (middle + 1, high) if (int(keys(here, seed)[0]), here.tobytes()) < goal else (low, middle)
    return low if low < len(ids) and ids[low].tobytes() == goal[1] else None


def _check(path: Path, info: ShardInfo) -> None:
    if file_digest(path) != info.side_sha256:
        raise DamagedError(path, f"sha256 is not {info.side_sha256}")


def _located(dataset: Dataset, stream: Stream, number: int, side: Side, position: int) -> Located:
    before = int(stream.table.tokens_before[number])
    return Located(
        id=side.ids[position].tobytes().hex(),
        split=stream.split,
        source=stream.source,
        shard=number,
        name=stream.table[number].name,
        position=position,
        start=before + int(side.starts[position]),
        stop=before + int(side.starts[position + 1]),
        origin=origin_of(dataset.names(stream.source), side.origins[position]),
    )
