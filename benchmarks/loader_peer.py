"""Run in a peer's environment: reads shuffled batches of 8 x 2048 by its own dataset, in process.

    python loader_peer.py KIND DATASET FOLDER BATCHES

KIND is megatron, olmo, streaming or litdata; FOLDER is the peer's, for its format (not timed) and indices.
Prints {"tokens", "seconds", "cpu", "first"} as JSON: of BATCHES batches, and seconds to a first one.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

LENGTH, BATCH = 2048, 8


def shard_files(dataset: Path) -> list[Path]:
    """The .bin files of the one training stream."""
    return sorted((dataset / "train" / "web").glob("*.bin"))


def windows(dataset: Path) -> Any:
    """Every LENGTH + 1 ids of the shards, as arrays."""
    for path in shard_files(dataset):
        ids = np.memmap(path, np.uint16, mode="r")
        yield from (ids[at : at + LENGTH + 1] for at in range(0, len(ids) - LENGTH, LENGTH))


def megatron(dataset: Path, folder: Path, batches: int) -> Callable[[int], Sequence[torch.Tensor]]:
    """GPTDataset with position ids reset at documents, over its blend of all shards."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 0, 1 << 20, 50_000, {"class": "none"}

    if not torch.distributed.is_initialized():
        meet = f"file://{folder / 'group'}"
        torch.distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    prefixes = [str(path.with_suffix("")) for path in shard_files(dataset)]
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=(prefixes, [float(Path(f"{prefix}.bin").stat().st_size) for prefix in prefixes]),
        split="1,0,0",
        path_to_cache=str(folder / "indices"),
        tokenizer=Tokenizer(),
        reset_position_ids=True,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    built = BlendedMegatronDatasetBuilder(GPTDataset, [batches * BATCH, 0, 0], lambda: True, config).build()[
        0
    ]
    keys = ("tokens", "labels", "loss_mask", "position_ids")

    def read(batch: int) -> Sequence[torch.Tensor]:
        rows = [built[batch * BATCH + row] for row in range(BATCH)]
        return [torch.stack([row[key] for row in rows]) for key in keys]

    return read


def olmo(dataset: Path, *_: object) -> Callable[[int], Sequence[torch.Tensor]]:
    """NumpyFSLDataset with document lengths, in an order of our own (its loader shuffles indices as well)."""
    from olmo_core.data import NumpyFSLDataset

    opened = NumpyFSLDataset(
        *shard_files(dataset),
        sequence_length=LENGTH,
        pad_token_id=0,
        eos_token_id=0,
        vocab_size=50_000,
        dtype=np.uint16,
        generate_doc_lengths=True,
    )
    opened.prepare()
    order = np.random.default_rng(1).permutation(len(opened))

    def read(batch: int) -> Sequence[torch.Tensor]:
        rows = [opened[int(number)] for number in order[batch * BATCH : (batch + 1) * BATCH]]
        return [torch.stack([row["input_ids"] for row in rows]), *(row["doc_lens"] for row in rows)]

    return read


def streaming(dataset: Path, folder: Path, *_: object) -> Callable[[int], Sequence[torch.Tensor]]:
    """StreamingDataset over MDS shards of samples of LENGTH + 1 ids, shuffled by py1e."""
    from streaming import MDSWriter, StreamingDataset

    place = folder / "mds"
    if not place.exists():
        with MDSWriter(out=str(place), columns={"tokens": f"ndarray:uint16:{LENGTH + 1}"}) as writer:
            for window in windows(dataset):
                writer.write({"tokens": np.array(window)})
    opened = StreamingDataset(local=str(place), shuffle=True, batch_size=BATCH, shuffle_algo="py1e")
    found = iter(opened)

    def read(_: int) -> Sequence[torch.Tensor]:
        rows = np.stack([next(found)["tokens"] for _row in range(BATCH)]).astype(np.int64)
        return [torch.from_numpy(rows)]

    return read


def ids_of(path: str) -> Any:
    """All ids of a shard, as litdata's writer takes them."""
    yield torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int32))


def litdata(dataset: Path, folder: Path, *_: object) -> Callable[[int], Sequence[torch.Tensor]]:
    """StreamingDataset over blocks of LENGTH + 1 ids, shuffled; it knows no documents."""
    from litdata import StreamingDataset, TokensLoader, optimize

    place, block = folder / "litdata", LENGTH + 1
    if not place.exists():
        paths = [str(path) for path in shard_files(dataset)]
        optimize(
            ids_of, paths, str(place), chunk_size=block * 8192, item_loader=TokensLoader(), num_workers=1
        )
    opened = StreamingDataset(str(place), shuffle=True, item_loader=TokensLoader(block_size=block))
    found = iter(opened)

    def read(_: int) -> Sequence[torch.Tensor]:
        return [torch.stack([next(found) for _row in range(BATCH)]).long()]

    return read


def main(kind: str, dataset: Path, folder: Path, batches: int) -> None:
    """Measures one peer."""
    folder.mkdir(parents=True, exist_ok=True)
    make = {"megatron": megatron, "olmo": olmo, "streaming": streaming, "litdata": litdata}[kind]
    make(dataset, folder, batches)  # formats and indices are there from now on
    began = time.perf_counter()
    read = make(dataset, folder, batches)
    if kind in ("megatron", "olmo"):
        read(batches // 2)
    else:
        read(0)
    first = time.perf_counter() - began
    best: dict[str, float] = {}
    for _ in range(5):
        read = make(dataset, folder, batches)
        clock, cpu, tokens = time.perf_counter(), time.process_time(), 0
        for batch in range(batches):
            tokens += min(read(batch)[0].numel(), BATCH * LENGTH)
        found = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu, "tokens": tokens}
        best = found if not best or found["cpu"] < best["cpu"] else best
    print(json.dumps(best | {"first": first}))


if __name__ == "__main__":
    random.seed(1)
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
