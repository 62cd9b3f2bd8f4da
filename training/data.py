"""What a run reads, opened from its config: streams, cuts, orders, mixture, ramps.

    dataset, train config, mixture's plan -> Data: feed (which samples), readers (their tokens)

What cannot be read so is refused before step 0, with the numbers. No torch here: the launcher, `trace` and
`verify-run` open the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bloomery.artifacts.store import LocalStore, open_store
from bloomery.config.training import TrainConfig
from bloomery.shards.cache import ShardCache
from bloomery.shards.dataset import Dataset, Stream
from bloomery.shards.feed import Feed, Source
from bloomery.shards.format import DamagedError, index_size
from bloomery.shards.order import Order, block_size
from bloomery.shards.overlay import Overlay
from bloomery.shards.packing import BestFit, Concat, Cut
from bloomery.shards.reader import Fetch, InPlace, Reader, Shards
from bloomery.shards.schedule import Change, Mixture, Ramp
from training.job import Job, TrainingError

Plan = Mapping[str, Mapping[str, Any]]
"""source -> weight, tokens, held, max_epochs: what the stage `mixture` decided."""


def read_plan(data: bytes) -> Plan:
    """The plan that the stage `mixture` wrote."""
    plan: Plan = json.loads(data)
    return plan


@dataclass(frozen=True)
class Data:
    """What a run reads."""

    dataset: Dataset
    feed: Feed
    readers: tuple[Reader, ...]
    """One a source, in the feed's order."""
    length: int
    """Inputs of a sample."""
    pieces: Ramp
    """Sequences that a sample is cut into, by step."""
    unused: int
    """Targets at the end of the run's last sample that are beyond the token budget."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids in the shards."""
        return np.dtype(self.dataset.manifest.policy.dtype)

    @property
    def eos_id(self) -> int:
        """The separator."""
        return self.dataset.manifest.policy.eos_id

    def bury(self, step: int) -> None:
        """Has the readers leave out the documents that are taken down at `step`."""
        stones = [stone for stone in self.feed.overlay.tombstones if stone.since <= step]
        for source, reader in zip(self.feed.sources, self.readers, strict=True):
            reader.bury([stone for stone in stones if stone.source == source.name])

    def ahead(self, step: int) -> None:
        """Begins to fetch the shards that `step` and the steps after it read: two super-blocks a source."""
        done = self.feed.mixture.counts(np.array([self.feed.span(step)[0]]))[0].tolist()
        for source, reader, position in zip(self.feed.sources, self.readers, done, strict=True):
            for at in (position, position + source.order.block):
                reader.ahead(*source.order.block_at(at))

    def tokens(self, step: int) -> int:
        """Targets of the first `step` steps, by the plan."""
        first = self.feed.span(step)[0]
        return first * self.length - (self.unused if first == self.feed.samples else 0)


def open_data(
    dataset: Dataset,
    train: TrainConfig,
    plan: Plan,
    tokenizer: str,
    tables: Path,
    overlay: Overlay = Overlay(),  # noqa: B008  frozen
    fetch: Fetch = InPlace(),  # noqa: B008  has no state
) -> Data:
    """Opens what a run reads.

    Args:
        dataset: the shards.
        train: the run's config.
        plan: of the mixture.
        tokenizer: sha256 of the run's tokenizer.json.
        tables: folder of the tables of bins, which are made if they are not there yet.
        overlay: of the run so far.
        fetch: brings shards to the dataset's folder.

    Raises:
        TrainingError: data and config do not go together: another tokenizer, an empty shard, a source without
            a whole sample, an unknown source, more epochs than allowed.
        DamagedError: root or tables are not what was written.
    """
    policy = dataset.manifest.policy
    if policy.tokenizer != tokenizer:
        raise TrainingError(
            f"the shards were made with tokenizer {policy.tokenizer}, the run has {tokenizer}",
            "make the shards again with the run's tokenizer, or train with theirs",
        )
    names = _sources(train, plan, dataset)
    length, batch = train.sequence_length, _ramp(train, "batch", train.global_batch)
    changes = _changes(train, plan, names, batch)
    sources, readers = [], []
    for name in names:
        stream = dataset.stream("train", name)
        shards = Shards(stream, fetch)
        cut = _cut(train, stream, shards, tables / dataset.manifest.streams["train"][name].sha256)
        if not cut.samples:
            raise TrainingError(
                f"source {name} has {stream.tokens:,} training tokens, fewer than a sequence of {length} + 1",
                f"give {name} the weight 0, add documents, or lower train.sequence_length",
            )
        order = Order(
            dataset.manifest.digest, name, train.seed, cut.samples, block_size(cut.samples, len(stream.table))
        )
        sources.append(Source(name, cut, order))
        readers.append(Reader(shards, cut, policy.eos_id))
    planned = sum(share["tokens"] for share in plan.values())
    budget = batch.before(train.steps) * length if train.steps else planned
    samples = -(-budget // length)
    feed = Feed(tuple(sources), Mixture(changes), batch, samples, overlay)
    _check_epochs(feed, plan, length)
    pieces = Ramp(tuple((r.until_step, length // r.value) for r in train.schedule.length), 1)
    return Data(dataset, feed, tuple(readers), length, pieces, samples * length - budget)


def open_job(job: Job, overlay: Overlay, step: int = 0) -> tuple[Data, Fetch]:
    """Opens what a job reads from a step on, and what brings its shards: of a local store they are in place.

    Raises:
        TrainingError, DamagedError: as `open_data`.
    """
    store = open_store(job.store, job.s3_endpoint)
    fetch: Fetch = InPlace()
    if isinstance(store, LocalStore):
        dataset = Dataset.open(job.shards, job.dataset)
    else:
        fetch = cache = ShardCache(store, job.place, job.shards, job.parallel.cache_bytes)
        dataset = cache.open(job.dataset)
    plan, known = read_plan(job.mixture.read_bytes()), {stone.document for stone in overlay.tombstones}
    fresh = [stone for stone in job.tombstones if stone.document not in known]
    fresh = [stone.model_copy(update={"since": step}) for stone in fresh]
    overlay = overlay.model_copy(update={"tombstones": (*overlay.tombstones, *fresh)})
    return open_data(dataset, job.train, plan, job.tokenizer_digest, job.tables, overlay, fetch), fetch


def check_shards(dataset: Dataset, in_place: bool) -> None:
    """Checks that no shard is empty, and that the files of those `in_place` have the sizes of the tables.

    Their bytes are checked when they are read, so a run of any size starts at once.

    Raises:
        DamagedError: names the first that is not so.
    """
    for stream in dataset.streams():
        empty = np.flatnonzero((stream.table.tokens == 0) | (stream.table.documents == 0))
        if len(empty):
            raise DamagedError(stream.folder / f"{stream.table[int(empty[0])].name}.bin", "an empty shard")
        for number in range(len(stream.table) if in_place else 0):
            info = stream.table[number]
            sizes = {
                "bin": info.tokens * stream.dtype.itemsize,
                "idx": index_size(info.documents),
                "side": info.side_bytes,
            }
            for suffix, expected in sizes.items():
                path = stream.folder / f"{info.name}.{suffix}"
                found = path.stat().st_size if path.is_file() else None
                if found != expected:
                    raise DamagedError(path, f"{found or 'no'} bytes, the table says {expected}")


def _sources(train: TrainConfig, plan: Plan, dataset: Dataset) -> list[str]:
    """The sources that are given a weight at any time, sorted."""
    held = dataset.manifest.streams["train"]
    for name, share in plan.items():
        found = held[name].tokens if name in held else 0
        if found != share["held"]:
            raise TrainingError(
                f"the mixture is of {share['held']:,} training tokens of {name}, the shards hold {found:,}",
                "run the stage mixture again, on these shards",
            )
    for entry in train.schedule.mixture:
        if set(entry.weights) != set(plan):
            raise TrainingError(
                f"schedule.mixture at step {entry.from_step} names {', '.join(sorted(entry.weights))}; the "
                f"mixture's sources are {', '.join(sorted(plan))}",
                "name each of them; 0 leaves one out",
            )
    weights = [{name: share["weight"] for name, share in plan.items()}]
    weights += [entry.weights for entry in train.schedule.mixture]
    return sorted(name for name in plan if any(row[name] for row in weights))


def _changes(train: TrainConfig, plan: Plan, names: list[str], batch: Ramp) -> list[Change]:
    changes = [Change(0, tuple(plan[name]["weight"] for name in names))]
    for entry in train.schedule.mixture:
        start = batch.before(entry.from_step)
        over = batch.before(entry.from_step + entry.over_steps) - start
        changes.append(Change(start, tuple(entry.weights[name] for name in names), over, entry.curve))
    return changes


def _ramp(train: TrainConfig, name: str, value: int) -> Ramp:
    return Ramp(tuple((r.until_step, r.value) for r in getattr(train.schedule, name)), value)


def _cut(train: TrainConfig, stream: Stream, shards: Shards, table: Path) -> Cut:
    length, schedule = train.sequence_length, train.schedule
    if schedule.packing == "concat":
        return Concat(stream, length)
    path = table.with_name(f"{table.name}-{length}-{schedule.documents}.bins")
    return BestFit.make(stream, length, schedule.documents, shards.side, path)


def _check_epochs(feed: Feed, plan: Plan, length: int) -> None:
    counts = feed.mixture.counts(np.array([feed.samples]))[0].tolist()
    over = []
    for source, count in zip(feed.sources, counts, strict=True):
        share = plan[source.name]
        if (count - 1) * length > share["max_epochs"] * share["held"]:
            over.append(
                f"{source.name}: {count:,} samples of {length} are {count * length / share['held']:.2f} "
                f"epochs of its {share['held']:,} tokens, max_epochs {share['max_epochs']:g}"
            )
    if over:
        raise TrainingError(
            f"the run of {feed.samples:,} samples is longer than its data: {'; '.join(over)}",
            "lower train.steps or the weight, raise max_epochs in corpus.mixture, or add data",
        )
