"""Which documents a run has read, from its config and shards alone: no log is kept, none is needed.

    step -> samples -> runs of tokens -> documents, each with the file that it was read from
    document -> tokens -> samples that hold them -> steps that read those                 `Feed.find`

and whether it did: `replay` reads a run again on a CPU, and compares each step's mark with the journal's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import ctime
from typing import NamedTuple

import numpy as np

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.refs import list_refs
from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import LocalStore, Store
from bloomery.config.parallel import ParallelConfig
from bloomery.errors import BloomeryError
from bloomery.shards.cache import ShardCache
from bloomery.shards.dataset import Dataset, Stream
from bloomery.shards.lookup import Located, Origin, locate, origin_of
from bloomery.shards.overlay import Damage
from bloomery.shards.reader import Fetch, InPlace
from training.data import Data, open_data, read_plan
from training.layout import EXCLUDED, HISTORY, INDEX, History, Index
from training.loader import FIRST_RECEIPT, chain, plan_steps, read_steps

TOGETHER = 64
"""Steps that a replay plans at once."""


@dataclass(frozen=True)
class Sides:
    """A `Fetch` of side files only, from an object store."""

    shards: Artifact
    cache: Path

    def shard(self, stream: Stream, number: int, again: bool) -> None:
        """Brings the side file of a shard."""
        name = f"{stream.table[number].name}.side"
        if again:
            (stream.folder / name).unlink(missing_ok=True)
        self.shards.store.fetch(f"{self.shards.place}/{stream.split}/{stream.source}/{name}", self.cache)

    def ahead(self, stream: Stream, numbers: Iterable[int]) -> None:
        """Nothing: side files are small."""


@dataclass(frozen=True)
class TrainedRun:
    """A run as its newest checkpoint knows it."""

    key: str
    index: Index
    history: History
    data: Data
    shards: Artifact
    manifest: str
    """Of the shards."""
    cache: Path

    def local(self, name: str) -> Path:
        """A local path of a file of the dataset."""
        return self.shards.store.fetch(f"{self.shards.place}/{name}", self.cache)


class Part(NamedTuple):
    """What a step read of a document."""

    step: int
    sample: int
    """Of the run."""
    source: str
    document: str
    first: int
    """First token of the document that was read."""
    tokens: int
    origin: Origin


class Exposure(NamedTuple):
    """A step that reads a document."""

    step: int
    sample: int
    """Of the run."""
    done: bool
    """Whether the run was trained on it; else it is to come, or was passed over."""


def find_run(store: Store, what: str) -> str:
    """Key of the run of this name that began last, or of the one whose key starts so.

    Raises:
        BloomeryError: there is none, or more than one whose key starts so.
    """
    heads = {
        ref.name.split("/")[1]: ref.value for ref in list_refs(store, "runs/") if ref.name.endswith("/head")
    }
    if named := [key for key, head in heads.items() if head.get("name") == what]:
        return max(named, key=lambda key: heads[key]["began"])
    found = [key for key in heads if key.startswith(what)]
    if len(found) == 1:
        return found[0]
    listed = [f"{key[:12]} (begun {ctime(heads[key]['began'])}, step {heads[key]['step']})" for key in found]
    raise BloomeryError(
        f"no run is named {what!r}, and {len(found)} have such a key{': ' * bool(found)}{', '.join(listed)}",
        "name a run by its name, or by the first digits of its key; `bloomery refs runs/` lists them",
    )


def open_run(store: Store, key: str, cache: Path, tables: Path, tokens: bool = False) -> TrainedRun:
    """Opens what a run reads, as its newest checkpoint knows it.

    Args:
        store: of the run.
        key: of the run.
        cache: folder for what is fetched from an object store.
        tables: folder of the tables of bins.
        tokens: whether tokens are read as well, not only where they came from.

    Raises:
        BloomeryError: the run has no checkpoint yet.
    """
    journal = Journal(store, key)
    head = journal.head()
    if head is None:
        raise BloomeryError(f"run {key[:12]} has no checkpoint yet", "ask again after its first checkpoint")
    weights, about = journal.weights(head), next(list_refs(store, f"runs/{key}/head")).value
    index = Index.model_validate_json(store.read(f"{weights.place}/{INDEX}"))
    history = History.model_validate_json(store.read(f"{weights.place}/{HISTORY}"))
    shards = artifact(store, about["shard"], "shards")
    plan = read_plan(artifact(store, about["mixture"], "plan").read())
    fetch: Fetch = InPlace()
    dataset = Dataset.fetch(shards, cache)
    if not isinstance(store, LocalStore):
        whole = ShardCache(store, shards.place, dataset.folder, ParallelConfig().cache_bytes)
        fetch = whole if tokens else Sides(shards, cache)
    data = open_data(dataset, index.train, plan, index.tokenizer, tables, index.overlay, fetch)
    return TrainedRun(key, index, history, data, shards, about["shard"], cache)


def trace_step(run: TrainedRun, step: int) -> list[Part]:
    """What a step reads, document by document, in the order of its samples.

    Raises:
        BloomeryError: the run has no such step.
    """
    feed = run.data.feed
    if not 0 <= step < feed.steps:
        raise BloomeryError(f"run {run.key[:12]} has no step {step}", f"its steps are 0 .. {feed.steps - 1}")
    first, count = feed.span(step)
    reading, parts = feed.read(np.arange(first, first + count)), list[Part]()
    for number, reader in enumerate(run.data.readers):
        mine = np.flatnonzero(reading.source == number)
        segments = reader.within_shards(reader.cut.segments(reading.sample[mine])) if len(mine) else None
        for row, start, size in (
            zip(segments.row, segments.start, segments.size, strict=True) if segments else ()
        ):
            parts += _documents(run, number, step, first + int(mine[row]), int(start), int(size))
    return sorted(parts, key=lambda part: part.sample)


def _documents(run: TrainedRun, source: int, step: int, sample: int, start: int, size: int) -> Iterator[Part]:
    reader, name = run.data.readers[source], run.data.feed.sources[source].name
    stream = reader.stream
    shard = int(stream.shards_at(np.array([start]))[0])
    side, names, at = reader.shards.side(shard), run.data.dataset.names(name), start - stream.start(shard)
    edges = np.array([at, at + size - 1], np.uint32)
    low, high = (np.searchsorted(side.starts, edges, "right") - 1).tolist()
    for document in range(low, high + 1):
        begin, end = int(side.starts[document]), int(side.starts[document + 1])
        first, last = max(begin, at), min(end, at + size)
        where = origin_of(names, side.origins[document])
        yield Part(step, sample, name, side.ids[document].tobytes().hex(), first - begin, last - first, where)


def trace_document(run: TrainedRun, document: str) -> tuple[Located, list[Exposure]]:
    """Where a document stands, and every step that reads any of it, but those after it was taken down.

    Raises:
        UnknownDocumentError: the dataset does not hold it.
    """
    [found] = locate(run.data.dataset, [document], run.local)
    feed = run.data.feed
    names = [source.name for source in feed.sources]
    if found.split != "train" or found.source not in names:
        return found, []
    source = names.index(found.source)
    samples = feed.find(source, feed.sources[source].cut.holding(found.start, found.stop))
    gone = [stone.since for stone in feed.overlay.tombstones if stone.document == document]
    steps = [(feed.batch.step(sample), sample) for sample in samples.tolist()]
    kept = [(step, sample) for step, sample in steps if not gone or step < min(gone)]
    excluded = {exclusion.step for exclusion in run.index.exclusions}
    return found, [
        Exposure(step, sample, step < run.index.step and step not in excluded) for step, sample in kept
    ]


class Replayed(NamedTuple):
    """A step that was read again."""

    step: int
    right: bool
    """Whether the run read the same."""
    damage: list[Damage]
    """Not empty: it cannot be read any more."""


def replay(run: TrainedRun) -> Iterator[Replayed]:
    """Reads every step that is done again, in order.

    Raises:
        BloomeryError: the marks of the history do not make the receipt.
    """
    receipt = FIRST_RECEIPT
    for step, mark in enumerate(run.history.marks):
        receipt = chain(receipt, step, mark)
    if receipt.now != run.index.receipt:
        raise BloomeryError(
            f"the checkpoint of step {run.index.step} has receipt {run.index.receipt}, its history's marks "
            f"make {receipt.now}",
            "its history is not its own: resume from another checkpoint",
        )
    for first in range(0, run.index.step, TOGETHER):
        plan = plan_steps(run.data, first, min(TOGETHER, run.index.step - first), 0, 1)
        for number in range(len(plan.shares)):
            [batch] = read_steps(run.data, plan.part(number, number + 1))
            right = run.history.marks[batch.step] in (str(batch.mark), EXCLUDED)
            yield Replayed(batch.step, right, batch.damage)
