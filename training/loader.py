"""The deterministic loader: order -> this rank's sequences of a step -> tokens, with a receipt.

    step s, rank r of W, global batch B: global samples [s*B + r*B/W, s*B + (r+1)*B/W)

Its whole state is (step, receipt). The receipt is a chained hash over every sample's number and tokens in the
order of the global batch: it proves what a run has read, and does not depend on the number of ranks.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from bloomery.errors import BloomeryError
from bloomery.shards.order import Order
from bloomery.shards.stream import Sequences, TokenStream

Marks = npt.NDArray[np.uint64]


class Loader:
    """Batches of one rank."""

    def __init__(
        self, stream: TokenStream, dataset: str, seed: int, length: int, batch: int, rank: int, ranks: int
    ) -> None:
        """Opens the order.

        Args:
            stream: the training split.
            dataset: content digest of the shards.
            seed: of the order.
            length: tokens a sequence.
            batch: sequences of a step over all ranks, a multiple of `ranks`.
            rank: this rank.
            ranks: all of them.

        Raises:
            BloomeryError: the split is shorter than one sequence.
        """
        sequences = stream.sequences(length)
        if not sequences:
            raise BloomeryError(
                f"the training split has {len(stream)} tokens, fewer than one sequence of {length}",
                "add documents, or lower train.sequence_length",
            )
        self.stream, self.length, self.batch = stream, length, batch
        self.order = Order(dataset, seed, sequences)
        self.rank, self.share = rank, batch // ranks
        self.marks: list[Marks] = []

    def step(self, step: int) -> Sequences:
        """This rank's sequences of step `step` (from 0): [B / ranks, length + 1]."""
        first = step * self.batch + self.rank * self.share
        numbers = self.order.sequences(first, self.share)
        tokens = self.stream.gather(numbers, self.length)
        self.marks.append(np.array([mark(n, row) for n, row in zip(numbers, tokens, strict=True)], np.uint64))
        return tokens

    def take_marks(self) -> Marks:
        """Marks of the samples read since the last call: [steps, B / ranks]."""
        taken, self.marks = self.marks, []
        return np.stack(taken) if taken else np.empty((0, self.share), np.uint64)


def mark(number: np.int64, tokens: npt.NDArray[np.int64]) -> int:
    """64-bit hash of a sample: its sequence number and its tokens."""
    data = np.int64(number).astype("<i8").tobytes() + tokens.astype("<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def chain(receipt: str, marks: Marks) -> str:
    """The receipt after the steps whose marks, in the order of the global batch, are [steps, B]."""
    for step in marks:
        receipt = hashlib.sha256(bytes.fromhex(receipt) + step.astype("<u8").tobytes()).hexdigest()
    return receipt


FIRST_RECEIPT = hashlib.sha256(b"bloomery receipt 1").hexdigest()
