"""How a run begins on what another run has trained. No torch here: the launcher decides it.

    the same run, but longer     goes on from the newest checkpoint that it would have made as well
    init_from, loader: true      a fork: the journal goes on from the other's checkpoint, its parent named
    init_from, loader: false     step 0 with the other's weights, and its optimizer if asked for

The first is found by itself and changes nothing but the time it takes: dataset, code and config are the same,
and so is the learning rate of every step done. The others are the config's, by the checkpoint's digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bloomery.artifacts.journal import Checkpoint, Journal, Retention
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.refs import list_refs
from bloomery.artifacts.run import artifact
from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore, Store
from bloomery.config.base import identity
from bloomery.config.training import InitConfig, TrainConfig
from bloomery.errors import BloomeryError
from bloomery.shards.overlay import Overlay
from training.data import Data, open_data, open_job, read_plan
from training.job import Job
from training.layout import INDEX, Index, RefusedError, Standing, code_facts
from training.parallel import learning_rate

LOOKED_AT = 4096
"""Most samples that two runs are compared by, spread evenly."""


@dataclass(frozen=True)
class Other:
    """A checkpoint of another run, or of an import."""

    weights: Artifact
    index: Index


def open_other(store: Store, digest: str) -> Other:
    """The checkpoint whose manifest has this digest.

    Raises:
        RefusedError: there is none.
    """
    try:
        weights = artifact(store, digest, "weights")
        index = Index.model_validate_json(store.read(f"{weights.place}/{INDEX}"))
    except (BloomeryError, KeyError, ValueError, OSError) as error:
        raise RefusedError(
            f"train.init_from.checkpoint: {digest} is no checkpoint: {_first_line(error)}",
            "name the manifest of one: `bloomery checkpoints RUN` lists them, `bloomery import` prints its",
        ) from error
    return Other(weights, index)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def initial(store: Store, init: InitConfig, cache: Path) -> Standing:
    """The checkpoint that a run takes its first weights from."""
    other = open_other(store, init.checkpoint)
    root = store.root if isinstance(store, LocalStore) else cache
    place, digest = other.weights.place, other.weights.output.digest
    return Standing(step=other.index.step, digest=digest, fence=0, folder=root / place, place=place)


def adopt(context: Context, journal: Journal, job: Job) -> Checkpoint | None:
    """Has a run without checkpoints go on from another's, where it may.

    Raises:
        RefusedError: it is told to, and may not.
    """
    train: TrainConfig = context.config
    data, _ = open_job(job, Overlay())
    parents, how = list[str](), "prefix"
    if train.init_from and train.init_from.loader:
        parents, how = [train.init_from.checkpoint], "fork"
        _check_fork(open_other(context.store, parents[0]).index, data, job)
    elif train.init_from is None:
        parents = [found.digest for found in _longest_prefix(context, data, job)]
    made = None
    for parent in parents:  # the older ones stand in, should the newest be damaged
        other = open_other(context.store, parent)
        step, receipt, keep = other.index.step, other.index.receipt, Retention(len(parents))
        made = journal.append(step, other.weights, context.fence, receipt, keep, (parent, how))
        context.log(f"steps 1 .. {step} are those of checkpoint {parent[:12]}")
    return made


def _data_of(index: Index, data: Data, job: Job) -> Data:
    """What the other run reads, of the same dataset."""
    plan = read_plan(job.mixture.read_bytes())
    return open_data(data.dataset, index.train, plan, job.tokenizer_digest, job.tables, index.overlay)


def _check_fork(index: Index, data: Data, job: Job) -> None:
    step, train = index.step, job.train
    differ = [
        f"{name} {there}, here {here}"
        for name, there, here in (
            ("dataset", index.dataset, job.dataset),
            ("tokenizer", index.tokenizer, job.tokenizer_digest),
            ("model", index.config["model"], identity(train)["model"]),
        )
        if there != here
    ]
    if not differ and not _same_reading(_data_of(index, data, job), data, step):
        differ = [f"steps 1 .. {step} read other samples than here"]
    if data.feed.steps <= step:
        differ.append(f"step {step}, here {data.feed.steps} steps in all")
    if differ:
        raise RefusedError(
            f"train.init_from: the checkpoint has {'; '.join(differ)}",
            f"keep what it read up to step {step} as it was (seed, sequence_length, batches, mixture, "
            "packing), or set loader: false, which begins at step 0 with its weights",
        )


def _same_reading(there: Data, here: Data, step: int) -> bool:
    """Whether two runs read the same in their first steps."""
    about = [
        [data.length, *((s.name, s.order, type(s.cut)) for s in data.feed.sources)] for data in (there, here)
    ]
    steps = range(step + 1)
    if about[0] != about[1] or any(
        there.feed.span(n)[0] != here.feed.span(n)[0] or there.pieces.at(n) != here.pieces.at(n)
        for n in steps
    ):
        return False
    samples = np.unique(np.linspace(0, here.feed.span(step)[0] - 1, LOOKED_AT).astype(np.int64))
    found, expected = there.feed.read(samples), here.feed.read(samples)
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def _longest_prefix(context: Context, data: Data, job: Job) -> list[Checkpoint]:
    """The checkpoints, oldest first, that this run would make as well, of the run with the newest of them."""
    return max(_prefixes(context, data, job), key=lambda found: found[-1].step, default=[])


def _prefixes(context: Context, data: Data, job: Job) -> Iterator[list[Checkpoint]]:
    wanted = _but_for_steps(identity(job.train))
    for ref in list_refs(context.store, "runs/"):
        key = ref.name.split("/")[1]
        if not ref.name.endswith("/head") or key == job.run:
            continue
        found = list[Checkpoint]()
        for checkpoint in Journal(context.store, key).live():
            try:
                index = open_other(context.store, checkpoint.digest).index
            except RefusedError:  # gone, or of another version
                continue
            same = (index.dataset, index.tokenizer) == (job.dataset, job.tokenizer_digest)
            if not same or _but_for_steps(index.config) != wanted or index.code != code_facts():
                break
            if index.step < data.feed.steps and _same_rates(_data_of(index, data, job), data, index):
                found.append(checkpoint)
        if found:
            yield found


def _but_for_steps(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "steps"}


def _same_rates(there: Data, here: Data, index: Index) -> bool:
    """Whether the learning rate of each step done is what it would have been here."""
    return all(rate(there, index.train, step) == rate(here, index.train, step) for step in range(index.step))


def rate(data: Data, train: TrainConfig, step: int) -> float:
    """Learning rate of a step."""
    feed = data.feed
    return learning_rate(feed.span(step), feed.span(train.warmup_steps)[0], feed.samples, train)


def check_initial(index: Index, graph: dict[str, list[int]], tokenizer: str, init: InitConfig) -> None:
    """Refuses weights that do not fit the model, or whose rows of the vocabulary are other tokens'.

    Args:
        index: of the checkpoint.
        graph: name -> shape of the run's model.
        tokenizer: sha256 of the run's tokenizer.json.
        init: what is to be taken.

    Raises:
        RefusedError: names each difference.
    """
    there = {name: list(tensor.shape) for name, tensor in index.tensors.items()}
    differ = [
        f"{name}: checkpoint {there.get(name)}, run {graph.get(name)}"
        for name in sorted(there.keys() | graph.keys())
        if there.get(name) != graph.get(name)
    ]
    shape = index.config.get("model", {})
    if index.tokenizer != tokenizer:
        differ.insert(0, f"tokenizer: checkpoint {index.tokenizer}, run {tokenizer}")
    if init.optimizer and not any("exp_avg" in tensor.kinds for tensor in index.tensors.values()):
        differ.insert(0, "optimizer: true, but the checkpoint holds weights alone")
    if differ:
        raise RefusedError(
            f"train.init_from: {'; '.join(differ[:8])}{f'; and {len(differ) - 8} more' * (len(differ) > 8)}",
            f"its model is {shape}; pin its tokenizer with corpus.tokenizer.pinned",
        )
