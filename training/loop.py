"""The step loop of one rank.

    batch -> all-reduce of (damage?, targets, marks) -> damage: all ranks read around it, the batch again
          -> forward, backward of each micro-batch -> all-reduce of (loss, gradient norm, stop asked?, saved?)
          -> harmless? -> clipped, step -> held-out loss, snapshot where they are due

Host-side values go over a gloo group of their own, so the loop is the same on CPU and GPU. A step that would
do harm is passed over on all ranks, or the run goes back (training/guards.py). Each rank divides by all
targets of the step, so the loss is the mean over them however rows are cut, and padding and takedowns weigh
nothing. All ranks of a replica read the same rows; one of them speaks for it in the sums.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed

from bloomery.artifacts.journal import Journal
from bloomery.artifacts.store import open_store
from bloomery.config.base import identity
from bloomery.shards.overlay import Damage, Overlay
from bloomery.shards.stream import TokenStream
from training.accounting import Clock, Meter
from training.bits import Score, token_bytes
from training.checkpoint import fill, fill_random
from training.console import Console
from training.continuing import check_initial, rate
from training.data import open_job
from training.engine import Engine, Rows
from training.fragments import create_state, graph, refresh
from training.guards import Guard, Verdict
from training.job import (
    Job,
    PeerFailedError,
    TrainingError,
    TrainingRewoundError,
    TrainingStoppedError,
)
from training.layout import (
    EXCLUDED,
    Allowed,
    Exclusion,
    Facts,
    HeldOut,
    History,
    Index,
    Standing,
    code_facts,
    dataset_facts,
)
from training.loader import (
    FIRST_RECEIPT,
    IGNORED,
    Batch,
    Loader,
    Mark,
    Receipt,
    Tokens,
    chain,
    plan_steps,
    read_steps,
)
from training.metrics import MetricLog, kept_seconds
from training.model import Decoder
from training.parallel import start_engine
from training.profiler import Profiler
from training.resume import Chosen, choose, open_standing, settle
from training.saver import Saver
from training.size import Size

LOW = (1 << 32) - 1
T = TypeVar("T")


def train(
    job: Job,
    rank: int,
    ranks: int,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print,
) -> None:
    """Trains to the last step, and leaves the final checkpoint in the run's journal.

    Args:
        job: the attempt.
        rank: this rank.
        ranks: all of them.
        stop: whether this rank was asked to stop; one asked is enough.
        say: takes rank 0's lines.

    Raises:
        TrainingStoppedError: asked to stop; a checkpoint is saved.
        TrainingRewoundError: a loss is far above those before: the journal says what is excluded.
        TrainingError: too many steps are not finite, or the run went back too often.
        CheckpointError: the run has checkpoints, and none is good.
        RefusedError: the checkpoint to resume from does not match the run.
    """
    torch.set_num_threads(job.parallel.threads)
    start_engine(job.device, f"file://{job.scratch / 'group'}")
    run = Run.start(job, rank, ranks)
    console = _console(run, say) if rank == 0 else None
    run.clock.begin()
    if console:
        console.begun(run)
    try:
        _steps(run, console, stop)
    finally:
        if console:
            console.ended(run)


def _steps(run: Run, console: Console | None, stop: Callable[[], bool]) -> None:
    """Every step from here on, and what is due between them."""
    job = run.job
    profiler = Profiler.of(job, run.rank)
    if run.step == 0:
        _measure(run, console)
    while run.step < run.steps:
        began = time.monotonic()
        with profiler.step(run.step):
            stopped = run.advance(stop())
        if console:
            console.step(run, time.monotonic() - began)
        last = run.step == run.steps
        if last or run.step % job.train.held_out_every == 0:
            _measure(run, console)
        with run.clock.phase("checkpoint"):
            if stopped and not last:
                run.snapshot(stored=False)  # stands soon, should the store take longer than the grace
            if last or stopped or run.step % job.parallel.checkpoint_every == 0:
                run.snapshot(stored=True)
            elif job.parallel.memory_every and run.step % job.parallel.memory_every == 0:
                run.snapshot(stored=False)
            if last or stopped:
                run.saver.close()
        if console:
            console.saved(run.saver)
        if stopped and not last:
            raise TrainingStoppedError(f"stopped on request after step {run.step}; its checkpoint is saved")
    run.loader.close()


def _console(run: Run, say: Callable[[str], None]) -> Console:
    job, data = run.job, run.loader.data
    meter = Meter.of(
        job.train,
        run.held_out_stream.vocab_size,
        run.ranks,
        torch.cuda.get_device_name() if job.device == "cuda" else "",
        data.tokens(run.steps),
        job.began,
        kept_seconds(job.metrics),
    )
    return Console(MetricLog(job.metrics), say, meter)


def _measure(run: Run, console: Console | None) -> None:
    with run.clock.phase("held_out"):
        found = run.held_out()
    if found and console:
        console.measured(found)


class Read(NamedTuple):
    """What all ranks have of a step."""

    targets: int
    mark: str
    """What it adds to the receipt."""
    damage: list[Damage]
    """Met by any rank, and read around."""


@dataclass
class Run:
    """The state of one rank of a run."""

    job: Job
    rank: int
    ranks: int
    control: Any
    """Process group (gloo) of host-side values."""
    clock: Clock
    engine: Engine
    loader: Loader
    steps: int
    """Of the whole run."""
    held_out_stream: TokenStream
    bytes_of: Tensor
    """Bytes of text of each token id: [V], int64."""
    expected: dict[int, str]
    """Step -> receipt of an attempt that went beyond the checkpoint."""
    allowed: tuple[Allowed, ...] = ()
    """Differences that it went on across."""
    refused: tuple[str, ...] = ()
    """Checkpoints that were passed over when it began."""
    step: int = 0
    updates: int = 0
    """Of the weights: Adam's count."""
    tokens: int = 0
    """Targets of the steps done."""
    receipt: Receipt = FIRST_RECEIPT
    read: Read = Read(0, "", [])  # noqa: RUF009  frozen
    verdict: Verdict = Verdict()  # noqa: RUF009  frozen
    """On the last step."""
    losses: list[float | None] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    grad_norms: list[float | None] = field(default_factory=list)
    measured: list[HeldOut] = field(default_factory=list)
    squares: dict[str, float] = field(default_factory=dict)
    """Sum of squares of each weight's gradient in the last step, where it was gathered."""
    exclusions: list[Exclusion] = field(default_factory=list)
    """Steps that were passed over."""
    saver: Saver = field(init=False)
    """Knows where all state stands, once the optimizer has its own."""

    @classmethod
    def start(cls, job: Job, rank: int, ranks: int) -> Run:
        """Builds model, engine and loader, and resumes where the job says so."""
        control = distributed.new_group(backend="gloo")
        chosen = choose(job, rank, ranks, lambda wrong: _gathered(control, ranks, wrong))
        step = chosen.standing.step if chosen else 0
        overlay = chosen.reader.index.overlay if chosen else Overlay()
        data, fetch = together(control, lambda: open_job(job, overlay, step))
        held_out = TokenStream.of(data.dataset, "held_out", fetch)
        facts = _facts(job, held_out.vocab_size)
        allowed = _admitted(job, chosen, facts) if chosen else ()
        engine = Engine.start(job.train, job.parallel, held_out.vocab_size)
        replica = engine.mesh.data
        sizes = np.zeros(held_out.vocab_size, np.int64)
        known = token_bytes(job.tokenizer.read_bytes())[: held_out.vocab_size]
        sizes[: len(known)] = known
        run = cls(
            job=job,
            rank=rank,
            ranks=ranks,
            control=control,
            clock=Clock(),
            engine=engine,
            loader=Loader(data, replica.rank, replica.size, step),
            steps=data.feed.steps,
            expected=dict(job.receipts),
            held_out_stream=held_out,
            bytes_of=torch.from_numpy(sizes),
            allowed=allowed,
        )
        if chosen:
            run.resume(chosen)
        else:
            create_state(engine.deepspeed, 0)
            if job.initial:
                run.begin_with(job.initial, facts)
        run.saver = Saver.start(job, engine, rank, ranks, control)
        return run

    def begin_with(self, initial: Standing, facts: Facts) -> None:
        """Takes the weights of another run's checkpoint, and its optimizer's state if it is to."""
        init = self.job.train.init_from
        assert init

        def load() -> Index:
            reader = open_standing(self.job, initial)
            check_initial(reader.index, facts["graph"], self.job.tokenizer_digest, init)
            fill(self.engine, reader, init.optimizer)
            return reader.index

        index = together(self.control, load)
        refresh(self.engine.deepspeed)
        self.updates = index.updates if init.optimizer else 0

    def resume(self, chosen: Chosen) -> None:
        """Loads a checkpoint, and checks that what its last step read is read here as well."""
        reader, index, history = chosen.reader, chosen.reader.index, chosen.history
        init, adopted = self.job.train.init_from, chosen.standing.adopted
        whole = not (adopted == "fork" and init and not init.optimizer)
        together(self.control, lambda: fill(self.engine, reader, whole))
        fill_random(reader, self.rank, self.ranks)
        refresh(self.engine.deepspeed)
        self.step, self.tokens, self.updates = index.step, index.tokens, index.updates if whole else 0
        self.receipt = Receipt(index.before, index.receipt)
        self.losses, self.grad_norms = list(history.loss), list(history.grad_norm)
        self.marks = list(history.marks)
        every = (
            self.job.train.held_out_every if adopted == "prefix" else 1
        )  # the other's end was measured, too
        self.measured = [found for found in history.held_out if found.step % every == 0]
        self.exclusions = list(index.exclusions)
        self.allowed, self.refused = (*index.allowed, *self.allowed), chosen.refused
        if self.refused:  # the launcher has made all ready for one that is newer
            receipts = together(self.control, lambda: settle(self.job, chosen) if self.rank == 0 else {})
            self.expected = _gathered(self.control, self.ranks, receipts)[0]
        self._check_last_step()

    def _check_last_step(self) -> None:
        """Reads the last step again: its receipt must come out.

        Raises:
            TrainingError: it does not.
        """
        data, last = self.loader.data, self.step - 1
        replica = self.engine.mesh.data
        [batch] = read_steps(data, plan_steps(data, last, 1, replica.rank, replica.size))
        damaged, *bits = self._sum(bool(batch.damage), *self._spoken(_bits(batch.mark)))
        buried = any(stone.since == self.step for stone in data.feed.overlay.tombstones)
        mark = EXCLUDED if self.marks[last] == EXCLUDED else _joined(bits)
        again = chain(self.receipt._replace(now=self.receipt.before), last, mark)
        if again.now != self.receipt.now and not damaged and not buried:
            raise diverged(
                self.step, f"the checkpoint's run has receipt {self.receipt.now}, here it is {again.now}"
            )

    @property
    def parameters(self) -> int:
        """Of the model."""
        return Size.of(self.job.train.model, self.held_out_stream.vocab_size).total

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        return rate(self.loader.data, self.job.train, step)

    def _sum(self, *values: float) -> list[float]:
        """Sums values over all ranks, in fp64."""
        with self.clock.phase("communication"):
            return _summed(self.control, *values)

    def _spoken(self, values: Sequence[float]) -> Sequence[float]:
        """Values that all ranks of a replica have, as one of them says them."""
        return values if self.engine.mesh.speaks else [0.0] * len(values)

    def next_batch(self) -> tuple[Batch, Read]:
        """This rank's batch of the next step, once no rank has met damage in it.

        Raises:
            TrainingError: the ranks are not at one step of one run.
        """
        lost: list[Damage] = []
        while True:
            with self.clock.phase("data"):
                batch = self.loader.read()
            targets, state = int((batch.targets != IGNORED).sum()), self._fingerprint(batch)
            shared = self._spoken([targets, *_bits(batch.mark)])
            damaged, states, squares, all_targets, *bits = self._sum(
                bool(batch.damage), state, state**2, *shared
            )
            if self.ranks * squares != states**2:
                raise diverged(self.step + 1, "the ranks are not at one step of one run")
            if not damaged:
                return batch, Read(int(all_targets), _joined(bits), lost)
            met: list[Any] = [None] * self.ranks
            distributed.all_gather_object(met, batch.damage, group=self.control)
            fresh = list({damage.model_dump_json(): damage for part in met for damage in part}.values())
            self.loader.around(fresh, self.step)
            lost += fresh

    def _fingerprint(self, batch: Batch) -> int:
        """20 bits of what all ranks must have in common, so that the sum of squares is exact in fp64."""
        state = (
            f"{batch.step} {self.step} {self.receipt.now} {self.loader.data.feed.overlay.model_dump_json()}"
        )
        return zlib.crc32(state.encode()) >> 12

    def advance(self, stop: bool) -> bool:
        """One step, taken or passed over; returns whether any rank was asked to stop.

        Raises:
            TrainingRewoundError: its loss is far above those before it.
            TrainingError: too many steps are not finite, or the run went back too often.
        """
        batch, read = self.next_batch()
        if self.step in self.job.excluded:
            self._pass_over(self.job.excluded[self.step], read)
            [stops] = self._sum(float(stop))
            return stops > 0
        data, width = self.loader.data, self.job.parallel.micro_batch
        rows = data.feed.span(self.step)[1] * data.pieces.at(self.step)
        most = math.ceil(rows / self.engine.mesh.data.size)  # rows of a replica; all do as many micro-batches
        micro_batches = _micro_batches(batch.inputs, batch.positions, batch.targets, most, width)
        with self.clock.phase("compute"):
            nats = self.engine.forward_backward(micro_batches, read.targets)
        with self.clock.phase("optimizer"):
            squares = self.engine.square_sums()
        total, square, stops, *votes = self._sum(
            nats, sum(squares.values()), float(stop), *self.saver.votes()
        )
        with self.clock.phase("checkpoint"):
            self.saver.learn(votes)
        loss, norm = total / max(1, read.targets), math.sqrt(square)
        self.verdict = self.guard.judge(loss, norm)
        if self.verdict.back:
            self._go_back(self.verdict.why)
        if not self.verdict.taken:
            self.engine.discard()
            self._pass_over(self.verdict.why, read)
            self._give_up()
            return stops > 0
        with self.clock.phase("optimizer"):
            self.engine.step(self.rate(self.step), norm)
        self._measure_layers(squares)
        self.guard.taken(loss)
        self._done(read, read.mark, loss, norm)
        return stops > 0

    def _measure_layers(self, squares: dict[str, float]) -> None:
        """Gathers the squared gradients of all weights where that is due."""
        self.squares = {}
        if (self.step + 1) % self.job.parallel.layers_every == 0:
            with self.clock.phase("communication"):
                for found in _gathered(self.control, self.ranks, squares):
                    for name, square in found.items():
                        self.squares[name] = self.squares.get(name, 0.0) + square

    def _done(self, read: Read, mark: str, loss: float | None, norm: float | None) -> None:
        """Notes a step."""
        receipt = chain(self.receipt, self.step, mark)
        self._compare(self.step + 1, receipt, read)
        self.step, self.receipt, self.read = self.step + 1, receipt, read
        if loss is not None:
            self.tokens, self.updates = self.tokens + read.targets, self.updates + 1
        self.losses.append(loss)
        self.marks.append(mark)
        self.grad_norms.append(norm)

    def _pass_over(self, why: str, read: Read) -> None:
        """Notes a step whose batch is not trained on."""
        self.verdict = Verdict(why, taken=False)
        self.exclusions.append(Exclusion(step=self.step, why=why))
        self.guard.passed_over()
        self._done(read, EXCLUDED, None, None)

    def _give_up(self) -> None:
        """Ends the run where too many steps in a row were passed over.

        Raises:
            TrainingError: it is so.
        """
        if self.guard.skipped > self.guard.config.skips:
            self.saver.wait()
            raise TrainingError(
                f"step {self.step}: {self.verdict.why}; {self.guard.skipped} steps in a row were passed over",
                "lower train.learning_rate, raise train.warmup_steps, or look at the data of those steps: "
                "`bloomery trace`",
            )

    def _go_back(self, why: str) -> None:
        """Has the journal exclude this step and those before it.

        Raises:
            TrainingRewoundError: always, or
            TrainingError: once too often.
        """
        guards = self.job.train.guards
        journal = Journal(open_store(self.job.store, self.job.s3_endpoint), self.job.run)
        self.engine.discard()
        self.saver.wait()
        first = max(0, self.step - guards.rewind_steps)
        steps = [step for step in range(first, self.step + 1) if step not in self.job.excluded]
        often = together(self.control, journal.rewinds)
        if often >= guards.rewinds:
            raise TrainingError(
                f"step {self.step + 1}: {why}; the run went back {often} times",
                "look at the data of the excluded steps: `bloomery trace`; or set train.guards.spike: skip",
            )
        excluded = dict.fromkeys(steps, f"step {self.step + 1}: {why}")
        together(self.control, lambda: journal.exclude(excluded, self.job.fence) if self.rank == 0 else None)
        raise TrainingRewoundError(f"step {self.step + 1}: {why}; the run goes back before step {first + 1}")

    def _compare(self, number: int, receipt: Receipt, read: Read) -> None:
        """Compares with what an attempt before this one read in the step, unless there was damage since.

        Raises:
            TrainingError: it read something else.
        """
        if read.damage:
            self.expected.clear()
        before = self.expected.get(number, receipt.now)
        if before != receipt.now:
            raise diverged(
                number, f"an attempt before this one had receipt {before}, here it is {receipt.now}"
            )

    def held_out(self) -> HeldOut | None:
        """Loss on the first held-out sequences, shared among the ranks; None where there is no whole one."""
        length, replica = self.job.train.sequence_length, self.engine.mesh.data
        count = min(self.job.train.held_out_sequences, self.held_out_stream.sequences(length))
        if not count:
            return None
        found = self.held_out_stream.gather(np.arange(replica.rank, count, replica.size), length)
        targets = found.tokens[:, 1:]
        most = math.ceil(count / replica.size)
        width = self.job.parallel.micro_batch
        nats = self.engine.losses(_micro_batches(found.tokens[:, :-1], found.positions, targets, most, width))
        about = self._spoken([targets.size, int(self.bytes_of[torch.from_numpy(targets)].sum())])
        nats, all_tokens, all_bytes = self._sum(nats, *about)
        if not math.isfinite(nats):
            raise TrainingError(
                f"the held-out loss after step {self.step} is {nats}: the weights are not finite",
                "go on from a checkpoint before it, or lower train.learning_rate",
            )
        score = Score(nats, int(all_tokens), int(all_bytes))
        measured = HeldOut(
            step=self.step, **score._asdict(), loss=score.loss, bits_per_byte=score.bits_per_byte
        )
        self.measured.append(measured)
        return measured

    @cached_property
    def guard(self) -> Guard:
        """Judges the steps from here on."""
        return Guard(self.job.train.guards, self.losses)

    def snapshot(self, stored: bool) -> None:
        """Begins to save the step: to the store, or in this node's memory alone. Collective."""
        state = {
            "step": self.step,
            "updates": self.updates,
            "samples": self.loader.data.feed.span(self.step)[0],
            "tokens": self.tokens,
            "before": self.receipt.before,
            "receipt": self.receipt.now,
            "overlay": self.loader.data.feed.overlay.model_dump(mode="json"),
            "exclusions": [exclusion.model_dump() for exclusion in self.exclusions],
            "config": identity(self.job.train),
            "dataset": self.job.dataset,
            "tokenizer": self.job.tokenizer_digest,
            "vocab_size": self.held_out_stream.vocab_size,
            "code": code_facts(),
            "allowed": [allowed.model_dump() for allowed in self.allowed],
            "ranks": self.ranks,
        }
        history = History(
            loss=tuple(self.losses),
            grad_norm=tuple(self.grad_norms),
            held_out=tuple(self.measured),
            receipt=self.receipt.now,
            marks=tuple(self.marks),
        )
        here = [found.loss for found in self.measured if found.step == self.step]
        score = here[-1] if here else None
        self.saver.snapshot(self.step, state, history.model_dump(mode="json"), score, stored)


def together(control: Any, action: Callable[[], T]) -> T:
    """What `action` returns; if one rank fails, all raise, so that none waits for it for ever."""
    error: Exception | None = None
    try:
        found = action()
    except Exception as caught:
        error = caught
    if _summed(control, float(error is not None))[0]:
        raise error or PeerFailedError("another rank cannot start", "see its log")
    return found


def _gathered(control: Any, ranks: int, value: T) -> list[T]:
    """What each rank gives."""
    found: list[Any] = [None] * ranks
    distributed.all_gather_object(found, value, group=control)
    return found


def _facts(job: Job, vocab_size: int) -> Facts:
    """What a checkpoint must have in common with a run that goes on from it."""
    with torch.device("meta"):
        model = Decoder(job.train.model, vocab_size)
    return {
        "code": code_facts(),
        "config": identity(job.train),
        "dataset": dataset_facts(job.dataset, job.tokenizer_digest, vocab_size),
        "graph": graph(model),
    }


def _admitted(job: Job, chosen: Chosen, facts: Facts) -> tuple[Allowed, ...]:
    """Differences that a checkpoint may have from the run that goes on from it.

    Raises:
        RefusedError: it has others.
    """
    allow, adopted = list(job.parallel.allow), chosen.standing.adopted
    if adopted == "prefix":  # the launcher has compared them: the run would have made it as well
        facts = {name: values for name, values in facts.items() if name != "config"}
    return chosen.reader.index.admit(facts, [*allow, *(["config"] if adopted == "fork" else [])])


def _summed(control: Any, *values: float) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(total, group=control)
    return list(total.tolist())


def _bits(mark: Mark) -> list[int]:
    """A mark as numbers whose sums over ranks are exact in fp64: halves of 64 bits, then 32 bits."""
    return [mark.samples >> 32, mark.samples & LOW, *(mark.tokens >> bit & 1 for bit in range(32))]


def _joined(sums: list[float]) -> str:
    """The mark of a step, from the sums over its ranks."""
    high, low, *bits = (int(value) for value in sums)
    return str(
        Mark(((high << 32) + low) % (1 << 64), sum((bit & 1) << place for place, bit in enumerate(bits)))
    )


def _micro_batches(
    inputs: Tokens, positions: npt.NDArray[Any], targets: Tokens, most: int, width: int
) -> list[Rows]:
    """Rows cut into micro-batches of one shape: what `most` rows need, filled up with rows without targets.

    Args:
        inputs: [rows, l]; rows may be fewer than `most`.
        positions: [rows, l].
        targets: [rows, l].
        most: rows that a replica may have.
        width: rows of a micro-batch.
    """
    count = math.ceil(most / width)
    width = math.ceil(most / count)
    lacking = count * width - len(inputs)
    filled = [
        torch.from_numpy(np.concatenate([part, np.broadcast_to(row, (lacking, part.shape[1]))]))
        for part, row in (
            (inputs, np.zeros(inputs.shape[1], inputs.dtype)),
            (positions.astype(np.int32), np.arange(inputs.shape[1], dtype=np.int32)),
            (targets, np.full(inputs.shape[1], IGNORED, targets.dtype)),
        )
    ]
    return [Rows(*parts) for parts in zip(*(part.split(width) for part in filled), strict=True)]


def diverged(step: int, what: str) -> TrainingError:
    """The error of ranks or attempts that do not read the same."""
    return TrainingError(
        f"step {step}: {what}; all ranks stopped, nothing of the step is saved",
        "`bloomery verify-run` says which checkpoint is right; resume from it, with its code and data",
    )
