"""The step loop of one rank.

    batch -> forward, backward of each micro-batch -> one all-reduce of (loss, stop asked?) -> finite? -> step
          -> held-out loss, checkpoint where they are due

Host-side values go over a gloo group of their own, so the loop is the same on CPU and GPU. A step whose loss
or gradient is not finite ends the run on all ranks: nothing of it is saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from bloomery.artifacts.digests import file_digest
from bloomery.artifacts.journal import Journal
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.store import Store, open_store
from bloomery.config.base import identity
from bloomery.config.training import TrainConfig
from bloomery.shards.stream import TokenStream
from training.bits import Score, token_bytes
from training.checkpoint import Reader, check_coverage, fill, rank_file, write_rank
from training.job import Job, TrainingError, TrainingStoppedError
from training.layout import HISTORY, INDEX, CheckpointError, HeldOut, History, Index, Part, read_history
from training.loader import FIRST_RECEIPT, Loader, Marks, chain
from training.metrics import MetricLog, step_line
from training.model import Decoder, token_losses
from training.parallel import deepspeed_config, learning_rate, start_engine

QUIET = 2.0
"""Seconds between step lines."""


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
        TrainingError: a loss or gradient is not finite.
        CheckpointError: the checkpoint to resume from is damaged or of another run.
    """
    torch.set_num_threads(job.parallel.threads)
    start_engine(job.device, f"file://{job.scratch / 'group'}")
    run = Run.start(job, rank, ranks)
    if rank == 0:
        say(
            f"{sum(math.prod(p.shape) for p in run.model.parameters()):,} parameters, {ranks} ranks on "
            f"{job.device}, {'from step ' + str(run.step) if run.step else 'from the start'}"
        )
    console = Console(MetricLog(job.metrics), say) if rank == 0 else None
    if run.step == 0:
        _measure(run, console)
    while run.step < job.train.steps:
        began = time.monotonic()
        stopped = run.advance(stop())
        if console:
            console.show(run, time.monotonic() - began)
        last = run.step == job.train.steps
        if last or run.step % job.train.held_out_every == 0:
            _measure(run, console)
        if last or stopped or run.step % job.parallel.checkpoint_every == 0:
            digest = run.save()
            if console:
                console.say(f"checkpoint of step {run.step}: {digest}")
        if stopped and not last:
            raise TrainingStoppedError(f"stopped on request after step {run.step}; its checkpoint is saved")


def _measure(run: Run, console: Console | None) -> None:
    found = run.held_out()
    if found and console:
        console.measured(found)


@dataclass
class Console:
    """What rank 0 logs and says."""

    log: MetricLog
    say: Callable[[str], None]
    said: float = 0.0

    def show(self, run: Run, seconds: float) -> None:
        """Logs a step, and says it now and then."""
        train = run.job.train
        values = {
            "loss": run.losses[-1],
            "learning_rate": learning_rate(run.step - 1, train),
            "grad_norm": run.grad_norms[-1],
            "tokens_per_second": train.global_batch * train.sequence_length / seconds,
            "seconds": seconds,
        }
        self.log.write(run.step, values)
        if time.monotonic() - self.said > QUIET or run.step == train.steps:
            self.said = time.monotonic()
            self.say(step_line(run.step, train.steps, values, seconds))

    def measured(self, found: HeldOut) -> None:
        """Logs and says a held-out loss."""
        values = {"held_out_loss": found.loss, "held_out_bits_per_byte": found.bits_per_byte}
        self.log.write(found.step, values)
        self.say(
            f"held-out after step {found.step}: loss {found.loss:.4f}, "
            f"{found.bits_per_byte:.4f} bits per byte"
        )


@dataclass
class Run:
    """The state of one rank of a run."""

    job: Job
    rank: int
    ranks: int
    control: Any
    """Process group (gloo) of host-side values."""
    model: Decoder
    engine: Any
    loader: Loader
    held_out_stream: TokenStream
    bytes_of: Tensor
    """Bytes of text of each token id: [V], int64."""
    store: Store
    step: int = 0
    receipt: str = FIRST_RECEIPT
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    measured: list[HeldOut] = field(default_factory=list)

    @classmethod
    def start(cls, job: Job, rank: int, ranks: int) -> Run:
        """Builds model, engine and loader, and resumes where the job says so."""
        import deepspeed

        train = job.train
        stream = TokenStream.open(job.shards, "train")
        model = Decoder(train.model, stream.vocab_size)
        model.initialise(train.seed)
        torch.manual_seed(train.seed)
        engine = deepspeed.initialize(
            model=model, optimizer=optimizer(model, train), config=deepspeed_config(train, job.parallel)
        )[0]
        sizes = np.zeros(stream.vocab_size, np.int64)
        known = token_bytes(job.tokenizer.read_bytes())[: stream.vocab_size]
        sizes[: len(known)] = known
        run = cls(
            job=job,
            rank=rank,
            ranks=ranks,
            control=distributed.new_group(backend="gloo"),
            model=model,
            engine=engine,
            loader=Loader(
                stream, job.dataset, train.seed, train.sequence_length, train.global_batch, rank, ranks
            ),
            held_out_stream=TokenStream.open(job.shards, "held_out"),
            bytes_of=torch.from_numpy(sizes),
            store=open_store(job.store, job.s3_endpoint),
        )
        if job.resume:
            run.resume(job.resume)
        return run

    def resume(self, folder: Path) -> None:
        """Loads a checkpoint; if one rank cannot, all raise, so that none waits for it for ever."""
        error: Exception | None = None
        try:
            reader = Reader(folder, self.job.resume_digest)
            index = reader.index
            index.check(
                self.job.train, self.job.dataset, self.job.tokenizer_digest, self.held_out_stream.vocab_size
            )
            fill(self.engine, reader, self.rank, self.ranks)
            history = read_history(folder, index)
        except Exception as caught:
            error = caught
        if self._sum(float(error is not None))[0]:
            raise error or CheckpointError(f"another rank cannot load {folder}", "see its log")
        self.engine.optimizer.update_lp_params()
        self.step, self.receipt = index.step, index.receipt
        self.losses, self.grad_norms = list(history.loss), list(history.grad_norm)
        self.measured = list(history.held_out)

    def _sum(self, *values: float) -> list[float]:
        """Sums values over all ranks, in fp64."""
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, group=self.control)
        return list(total.tolist())

    def advance(self, stop: bool) -> bool:
        """One optimizer step; returns whether any rank was asked to stop.

        Raises:
            TrainingError: loss or gradient norm is not finite.
        """
        job, number = self.job, self.step + 1
        batch = torch.from_numpy(self.loader.step(self.step)).to(self.engine.device)
        loss_sum = 0.0
        for start in range(0, len(batch), job.parallel.micro_batch):
            if start:
                self.engine.step()  # between micro-batches it only counts
            part = batch[start : start + job.parallel.micro_batch]
            loss = token_losses(self.engine(part[:, :-1]), part[:, 1:]).mean()
            self.engine.backward(loss)
            loss_sum += loss.item() * len(part)
        total, stops = self._sum(loss_sum, float(stop))
        loss_mean = total / job.train.global_batch
        if not math.isfinite(loss_mean):
            raise non_finite(number, "loss", loss_mean)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, job.train)
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm())
        if not math.isfinite(norm):
            raise non_finite(number, "gradient norm", norm)
        self.step = number
        self.losses.append(loss_mean)
        self.grad_norms.append(norm)
        return stops > 0

    @torch.no_grad()
    def held_out(self) -> HeldOut | None:
        """Loss on the first held-out sequences, shared among the ranks; None where there is no whole one."""
        length = self.job.train.sequence_length
        count = min(self.job.train.held_out_sequences, self.held_out_stream.sequences(length))
        if not count:
            return None
        numbers = np.arange(self.rank, count, self.ranks)
        micro_batch = self.job.parallel.micro_batch
        nats, tokens, size = 0.0, 0, 0
        for start in range(0, len(numbers), micro_batch):
            part = numbers[start : start + micro_batch]
            batch = torch.from_numpy(self.held_out_stream.gather(part, length))
            on_device = batch.to(self.engine.device)
            logits = self.engine.module(on_device[:, :-1])
            nats += token_losses(logits, on_device[:, 1:]).double().sum().item()
            tokens += batch[:, 1:].numel()
            size += int(self.bytes_of[batch[:, 1:]].sum())
        nats, all_tokens, all_bytes = self._sum(nats, tokens, size)
        score = Score(nats, int(all_tokens), int(all_bytes))
        found = HeldOut(step=self.step, **score._asdict(), loss=score.loss, bits_per_byte=score.bits_per_byte)
        self.measured.append(found)
        return found

    def save(self) -> str:
        """Saves and commits a checkpoint of the step; returns its content digest on rank 0, else ""."""
        job = self.job
        place, local = f"{job.attempt}/checkpoint-{self.step:09d}", job.scratch / rank_file(self.rank)
        parts = write_rank(self.engine, self.rank, local)
        mine = (parts, file_digest(local), self.loader.take_marks())
        self.store.upload(local, f"{place}/{local.name}")
        local.unlink()
        gathered: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        distributed.gather_object(mine, gathered, group=self.control)
        digest = self._commit(place, gathered) if gathered else ""
        distributed.barrier(group=self.control)  # a rank that leaves early would have rank 0 killed
        return digest

    def _commit(self, place: str, gathered: list[tuple[list[Part], str, Marks]]) -> str:
        job = self.job
        marks = np.concatenate([marks for _, _, marks in gathered], axis=1)
        self.receipt = chain(self.receipt, marks)
        history = History(
            loss=tuple(self.losses),
            grad_norm=tuple(self.grad_norms),
            held_out=tuple(self.measured),
            receipt=self.receipt,
        )
        local = job.scratch / HISTORY
        local.write_text(history.model_dump_json())
        index = Index(
            step=self.step,
            samples=self.step * job.train.global_batch,
            receipt=self.receipt,
            config=identity(job.train),
            dataset=job.dataset,
            tokenizer=job.tokenizer_digest,
            vocab_size=self.held_out_stream.vocab_size,
            ranks=self.ranks,
            tensors={name: tuple(p.shape) for name, p in self.model.named_parameters()},
            parts=tuple(part for parts, _, _ in gathered for part in parts),
            files={
                HISTORY: file_digest(local),
                **{rank_file(rank): digest for rank, (_, digest, _) in enumerate(gathered)},
            },
        )
        check_coverage(index.tensors, index.parts)
        self.store.upload(local, f"{place}/{HISTORY}")
        local = job.scratch / INDEX
        local.write_bytes(index.to_bytes())
        self.store.upload(local, f"{place}/{INDEX}")
        tokens = index.samples * job.train.sequence_length
        weights = Artifact(
            Output(digest=index.digest, tokens=tokens, facts={"step": self.step}), place, self.store
        )
        Journal(self.store, job.run).append(
            self.step, weights, job.fence, self.receipt, job.parallel.keep_last
        )
        return index.digest


def optimizer(model: Decoder, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=train.betas)


def non_finite(step: int, what: str, value: float) -> TrainingError:
    """The error of a step that must not be taken."""
    return TrainingError(
        f"step {step}: {what} is {value}; all ranks stopped, nothing of the step is saved",
        "lower train.learning_rate, raise train.warmup_steps, or look at the data of that step",
    )
