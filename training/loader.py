"""The loader: steps -> this rank's rows, read ahead by one thread, with a receipt of what was read.

    feed (samples of the next steps) -> readers (their tokens, verified) -> Batch        prefetch thread
    rank r of W: rows [R*r // W, R*(r+1) // W) of the step's R rows                      any W, any R

A sample of L tokens is R / samples rows: one, or more while the length ramps up; the same tokens either way.
Some steps are read at once, so that their arithmetic is shared. A batch that met damage has no rows: the loop
has all ranks agree on it, reads around it (`around`) and asks for the step again.

The receipt is a chain over the steps, of each the sum of its samples' marks (64-bit hashes of place in the
run, source and sample) and the CRC32C of its tokens. Sums of ranks add up, and CRCs can be joined, so every
rank has the receipt at each step, and it does not depend on their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from awscrt.checksums import crc32c

from bloomery.shards.checksum import shifted
from bloomery.shards.feed import Reading
from bloomery.shards.order import mix
from bloomery.shards.overlay import Damage
from bloomery.shards.reader import Rows
from training.data import Data

IGNORED = -100
"""Target that is none, as torch's cross_entropy takes it."""
WINDOW = 1 << 19
"""Tokens that are read at once, when a step has fewer."""
AHEAD = 2
"""Windows that are read ahead."""
ODD = tuple(np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93], np.uint64))
"""Factors of a mark's three numbers."""
PLANNED = 1 << 21
"""Tokens whose samples are looked up at once."""

Indices = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int64]


class Receipt(NamedTuple):
    """Proof of what was read up to a step."""

    before: str
    """The chain before the last step."""
    now: str
    """The chain after it."""


FIRST_RECEIPT = Receipt("", hashlib.sha256(b"bloomery receipt 2").hexdigest())


class Mark(NamedTuple):
    """What a step adds to the receipt; of a rank, its part of that."""

    samples: int
    """Sum of the marks of the samples, modulo 2^64."""
    tokens: int
    """CRC32C of their tokens, one after the other; of a rank, times x^(8 * bytes behind its own)."""

    def __str__(self) -> str:
        return f"{self.samples:016x}{self.tokens:08x}"

    @classmethod
    def join(cls, marks: Iterable[Mark]) -> Mark:
        """That of a step, of all its ranks."""
        samples = tokens = 0
        for mark in marks:
            samples, tokens = (samples + mark.samples) % (1 << 64), tokens ^ mark.tokens
        return cls(samples, tokens)


def chain(receipt: Receipt, step: int, mark: str) -> Receipt:
    """The receipt after a step with this mark (24 hexadecimal digits)."""
    link = f"{receipt.now} {step} {mark}".encode()
    return Receipt(receipt.now, hashlib.sha256(link).hexdigest())


@dataclass
class Batch:
    """This rank's rows of a step; l inputs each."""

    step: int
    inputs: Tokens
    """[rows, l]"""
    targets: Tokens
    """The token after each input, or IGNORED: [rows, l]."""
    positions: npt.NDArray[np.int32]
    """Of each input within its document, or the part of it that the row holds: [rows, l]."""
    cu_seqlens: npt.NDArray[np.int32]
    """Where those begin, over all inputs one after the other, and their number at the end: [segments + 1]."""
    mark: Mark
    """Of the samples that begin in these rows."""
    damage: list[Damage]
    """Not empty: nothing was read."""
    stalled: float = 0.0
    """Seconds that the caller waited for it."""


class Loader:
    """Batches of one rank, in order."""

    def __init__(self, data: Data, rank: int, ranks: int, step: int = 0) -> None:
        """Begins at `step`, with the first call of `read`; until then `data` is the caller's alone."""
        self.data, self.rank, self.ranks, self.step = data, rank, ranks, step
        self._thread: threading.Thread | None = None

    def _start(self, step: int) -> None:
        self._queue: queue.Queue[list[Batch] | Exception] = queue.Queue(maxsize=AHEAD)
        self._window: Iterator[Batch] = iter(())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._prefetch, args=(step,), name="loader", daemon=True)
        self._thread.start()

    def _prefetch(self, step: int) -> None:
        """Begins with one step, for a run that waits for it, and doubles what is planned and read at once."""
        data, planned, window = self.data, 1, 1
        try:
            while step < data.feed.steps and not self._stop.is_set():
                data.ahead(step)
                plan = plan_steps(data, step, min(planned, data.feed.steps - step), self.rank, self.ranks)
                done = 0
                while done < len(plan.shares) and not self._stop.is_set():
                    batches = read_steps(data, plan.part(done, done + window))
                    self._put(batches)
                    done += len(batches)
                    window = min(2 * window, _fitting(data, step, WINDOW))
                step += done
                planned = min(4 * planned, _fitting(data, step, PLANNED))
        except Exception as error:
            self._put(error)

    def _put(self, found: list[Batch] | Exception) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(found, timeout=0.1)
                return

    def read(self) -> Batch:
        """The next step's batch; the same again until it is without damage.

        Raises:
            Exception: what ended the thread.
        """
        began = time.monotonic()
        if self._thread is None:  # the first batch has nobody to wait for
            [batch] = read_steps(self.data, plan_steps(self.data, self.step, 1, self.rank, self.ranks))
            self._start(self.step + 1)
        else:
            batch = self._next()
        batch.stalled = time.monotonic() - began
        self.step = batch.step + 1
        return batch

    def _next(self) -> Batch:
        batch = next(self._window, None)
        if batch is None:
            found = self._queue.get()
            if isinstance(found, Exception):
                raise found
            self._window = iter(found)
            batch = next(self._window)
        return batch

    def around(self, damage: list[Damage], step: int) -> None:
        """Reads around damage, that of all ranks, from `step` on, which is the next to be read."""
        self.close()
        self.data = replace(self.data, feed=self.data.feed.around(damage, step))
        self.step = step

    def close(self) -> None:
        """Ends the thread."""
        if self._thread:
            self._stop.set()
            self._thread.join()
            self._thread = None


def _fitting(data: Data, step: int, tokens: int) -> int:
    """How many steps have about so many tokens, at least one."""
    return max(1, tokens // (data.feed.batch.at(step) * data.length))


class Share(NamedTuple):
    """A rank's part of a step."""

    step: int
    first: int
    """First sample of the run that it reads."""
    samples: int
    pieces: int
    """Rows of a sample."""
    skip: int
    """Rows of the first sample that are the rank before's."""
    rows: int
    behind: int
    """Samples of the step that come after its own."""


def share(data: Data, step: int, rank: int, ranks: int) -> Share:
    """Which rows of a step a rank has."""
    first, samples = data.feed.span(step)
    pieces = data.pieces.at(step)
    low, high = samples * pieces * rank // ranks, samples * pieces * (rank + 1) // ranks
    begin, end = low // pieces, -(-high // pieces)
    return Share(step, first + begin, end - begin, pieces, low - begin * pieces, high - low, samples - end)


class Steps(NamedTuple):
    """What a rank reads in some steps."""

    shares: list[Share]
    run: Indices
    """Samples of the run: [N]."""
    reading: Reading
    """The same as samples of their sources: [N]."""
    marks: list[int]
    """Of each share: the sum of the marks of the samples that begin in it."""

    def part(self, first: int, last: int) -> Steps:
        """The same of fewer steps."""
        low, high = (sum(share.samples for share in self.shares[:end]) for end in (first, last))
        reading = Reading(*(column[low:high] for column in self.reading))
        return Steps(self.shares[first:last], self.run[low:high], reading, self.marks[first:last])


def plan_steps(data: Data, step: int, steps: int, rank: int, ranks: int) -> Steps:
    """What a rank reads in the steps [step, step + steps)."""
    shares = [share(data, number, rank, ranks) for number in range(step, step + steps)]
    run = np.concatenate([np.arange(s.first, s.first + s.samples) for s in shares])
    reading = data.feed.read(run)
    columns = (run, reading.source, reading.sample)
    words = (column.view(np.uint64) * odd for column, odd in zip(columns, ODD, strict=True))
    marks = mix(next(words) ^ next(words) ^ next(words))
    ends = np.cumsum([s.samples for s in shares])
    begins = ends - [s.samples - (s.skip > 0) for s in shares]
    before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(marks)])  # modulo 2^64
    return Steps(shares, run, reading, (before[ends] - before[begins]).tolist())


def read_steps(data: Data, steps: Steps) -> list[Batch]:
    """A batch a step. If one of some steps meets damage, only the first step's: the next may be well."""
    run, reading = steps.run, steps.reading
    data.bury(steps.shares[0].step)
    rows = Rows(len(run), data.length + 1, data.dtype)
    damage = [
        found
        for number, reader in enumerate(data.readers)
        if len(mine := np.flatnonzero(reading.source == number))
        for found in reader.read(reading.sample[mine], mine, rows)
    ]
    if damage and len(steps.shares) > 1:
        return read_steps(data, steps.part(0, 1))
    if damage:
        return [_damaged(steps.shares[0].step, damage)]
    if data.unused and run[-1:] == data.feed.samples - 1:
        size = rows.samples * rows.width
        rows.masked.append(np.arange(size - data.unused, size))
    return _batches(data, steps, rows)


def _damaged(step: int, damage: list[Damage]) -> Batch:
    none = np.zeros((0, 1), np.int64)
    return Batch(step, none, none, none.astype(np.int32), np.zeros(1, np.int32), Mark(0, 0), damage)


def _batches(data: Data, steps: Steps, rows: Rows) -> list[Batch]:
    shares, length, count = steps.shares, data.length, rows.samples
    tokens, crcs, held = np.empty((count, length + 1), np.int64), list[int](), 0
    for part, gathered in zip(shares, rows.filled([part.samples for part in shares]), strict=True):
        crcs.append(_crc(part, gathered))
        tokens[held : held + part.samples] = gathered
        held += part.samples
    inputs, targets = tokens[:, :-1], tokens[:, 1:]  # of one array, unless some targets are none
    masked = np.concatenate([*rows.masked, np.zeros(0, np.int64)])
    if len(masked):
        row, place = np.divmod(masked, length + 1)
        targets = targets.copy()
        targets[row[place > 0], place[place > 0] - 1] = IGNORED
    begins = _begins(rows, shares, length)
    positions = _positions(begins, count * length)
    sizes = np.array([(s.samples, s.skip * length // s.pieces, s.rows * length // s.pieces) for s in shares])
    at = np.cumsum(sizes[:, 0]) - sizes[:, 0]
    low = at * length + sizes[:, 1]
    high = low + sizes[:, 2]
    edges = np.searchsorted(begins, [low, high])
    found = []
    for part, marks, crc, first, a, b, i, j in zip(
        shares, steps.marks, crcs, *(column.tolist() for column in (at, low, high, *edges)), strict=True
    ):
        cu_seqlens = begins[i : j + 1] - np.int32(a)
        cu_seqlens[-1] = b - a
        last, width = first + part.samples, length // part.pieces
        own = slice(part.skip, part.skip + part.rows)
        found.append(
            Batch(
                step=part.step,
                inputs=inputs[first:last].reshape(-1, width)[own],
                targets=targets[first:last].reshape(-1, width)[own],
                positions=positions[a:b].reshape(-1, width),
                cu_seqlens=cu_seqlens,
                mark=Mark(marks, crc),
                damage=[],
            )
        )
    return found


def _crc(part: Share, rows: npt.NDArray[Any]) -> int:
    """CRC32C of those samples, [samples, L + 1], that begin in a rank's rows, as part of the step's."""
    crc: int = crc32c(rows[1:] if part.skip else rows)
    return shifted(crc, part.behind * rows.shape[1] * rows.itemsize) if part.behind else crc


def _begins(rows: Rows, shares: list[Share], length: int) -> npt.NDArray[np.int32]:
    """Where documents or rows begin, over all inputs one after the other, ascending, and their end."""
    row, place = np.divmod(np.concatenate([*rows.begins, np.zeros(0, np.int64)]), length + 1)
    found, at = [(row * length + place)[place < length]], 0
    for part in shares:
        if part.pieces > 1:
            found.append(np.arange(at * length, (at + part.samples) * length, length // part.pieces))
        at += part.samples
    begins = np.sort(np.concatenate([*found, [at * length]])).astype(np.int32)
    return begins[np.diff(begins, prepend=np.int32(-1)) > 0]


def _positions(begins: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """How far each of `count` inputs is from the last begin."""
    last = np.repeat(begins[:-1], np.diff(begins))
    return np.subtract(np.arange(count, dtype=np.int32), last, out=last)
