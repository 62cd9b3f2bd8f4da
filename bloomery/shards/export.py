"""Shards as other trainers read them: a folder a stream, a file a shard, documents in their order.

    FOLDER/<split>/<source>/
        npy   00000.npy                        token ids without a header: OLMo-core
        ds    00000.ds, 00000.ds.index         token ids; u64 ends of documents: datatrove, nanotron
        mds   shard.00000.mds, index.json      one sample a document, field `tokens`, an ndarray:
                                               mosaicml-streaming
    FOLDER/manifest.json                       the dataset's own: tokenizer, separator, digest

Megatron, and whoever maps plain ids, reads `.bin` and `.idx` as they are. Tokens are verified as they are
copied; index.json comes last, so a folder without one is not whole.

MDS (mosaicml-streaming 0.13, streaming/base/format/mds): u32 samples | u32 offsets [samples + 1] | config as
JSON | samples, each u32 size | u8 dimensions << 2 | width of the length | length | values.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np

from bloomery.artifacts.manifest import Artifact
from bloomery.shards.dataset import MANIFEST, Dataset, Stream
from bloomery.shards.format import ShardError, Tokens
from bloomery.shards.shard import Shard

Kind = Literal["mds", "ds", "npy"]
Width = Literal["uint16", "int32", "uint32", "int64"]
CHUNK = 1 << 22
"""Tokens that are copied at a time."""


def export(
    shards: Artifact,
    kind: Kind,
    folder: Path,
    dtype: Width | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes a dataset below `folder` in the format `kind`.

    Args:
        shards: output of the stage `shard`.
        kind: of the files.
        folder: empty, or not there yet.
        dtype: of the ids; none keeps that of the shards.
        progress: is told how many tokens are done, now and then.

    Raises:
        ShardError: a folder with something in it, or a dtype that cannot hold the vocabulary.
        DamagedError: a shard is not what was written.
    """
    if kind not in get_args(Kind):
        raise ShardError(f"{kind!r} is no format", f"one of {', '.join(get_args(Kind))}")
    if folder.exists() and any(folder.iterdir()):
        raise ShardError(f"{folder} is not empty", "name a folder that is empty, or not there yet")
    with tempfile.TemporaryDirectory(prefix="bloomery-export-") as cache:
        dataset = Dataset.fetch(shards, Path(cache))
        target = np.dtype(dtype or dataset.manifest.policy.dtype)
        _check(dataset, target, dtype)
        streams, done = dataset.streams(), 0
        for stream in streams:
            place = folder / stream.split / stream.source
            place.mkdir(parents=True, exist_ok=True)
            for number, shard in enumerate(_opened(shards, stream)):
                for count in WRITERS[kind](place, number, shard, target):
                    done += count
                    progress(done)
            if kind == "mds":
                _write_index(place, stream, target)
    (folder / MANIFEST).write_bytes(dataset.manifest.to_bytes())


def _check(dataset: Dataset, target: np.dtype[Any], named: str | None) -> None:
    if named and named not in get_args(Width):
        raise ShardError(f"{named!r} is no dtype of token ids", f"one of {', '.join(get_args(Width))}")
    vocab_size = dataset.manifest.policy.vocab_size
    if np.iinfo(target).max < vocab_size - 1:
        raise ShardError(
            f"{target} holds ids up to {np.iinfo(target).max}, the vocabulary has {vocab_size}",
            "take a wider dtype",
        )


def _opened(shards: Artifact, stream: Stream) -> Iterator[Shard]:
    """Each shard in turn; a remote one is there only meanwhile."""
    for number in range(len(stream.table)):
        info = stream.table[number]
        with tempfile.TemporaryDirectory(prefix="bloomery-export-") as cache:
            paths = [
                shards.store.fetch(f"{shards.place}/{stream.split}/{stream.source}/{name}", Path(cache))
                for name in info.files()
            ]
            yield Shard.open(paths[0].parent, info, stream.dtype)


def _pieces(shard: Shard, target: np.dtype[Any]) -> Iterator[Tokens]:
    for start in range(0, shard.info.tokens, CHUNK):
        yield shard.read(start, min(start + CHUNK, shard.info.tokens)).astype(target, copy=False)


def _copy(file: BinaryIO, shard: Shard, target: np.dtype[Any]) -> Iterator[int]:
    for piece in _pieces(shard, target):
        file.write(piece.data)
        yield len(piece)


def _npy(place: Path, number: int, shard: Shard, target: np.dtype[Any]) -> Iterator[int]:
    with open(place / f"{number:05d}.npy", "xb") as file:
        yield from _copy(file, shard, target)


def _ds(place: Path, number: int, shard: Shard, target: np.dtype[Any]) -> Iterator[int]:
    with open(place / f"{number:05d}.ds", "xb") as file:
        yield from _copy(file, shard, target)
    (place / f"{number:05d}.ds.index").write_bytes(shard.side.starts[1:].astype("<u8").tobytes())


def _mds(place: Path, number: int, shard: Shard, target: np.dtype[Any]) -> Iterator[int]:
    config = _config(target)
    lengths = np.diff(shard.side.starts.astype(np.int64))
    heads = [_head(length, target) for length in lengths.tolist()]
    sizes = np.array([len(head) for head in heads]) + lengths * target.itemsize
    first = 4 + 4 * (len(shard) + 1) + len(config)
    offsets = np.concatenate([[0], np.cumsum(sizes)]) + first
    if offsets[-1] >= 1 << 32:
        raise ShardError(
            f"{shard.path}: {offsets[-1]} bytes as MDS, whose offsets have 32 bits",
            "lower corpus.shards.target_bytes, or name a narrower dtype",
        )
    with open(place / _mds_name(number), "xb") as file:
        file.write(np.array([len(shard)], "<u4").tobytes() + offsets.astype("<u4").tobytes() + config)
        for document, head in enumerate(heads):
            tokens = shard.document(document)
            file.write(head)
            file.write(tokens.astype(target, copy=False).data)
            yield len(tokens)


def _head(length: int, target: np.dtype[Any]) -> bytes:
    """What stands before a sample's values: its size, then the array's one dimension."""
    width = next(width for width in (1, 2, 4) if length < 1 << (8 * width))
    shape = bytes([1 << 2 | (width.bit_length() - 1)]) + length.to_bytes(width, "little")
    return (len(shape) + length * target.itemsize).to_bytes(4, "little") + shape


def _mds_name(number: int) -> str:
    return f"shard.{number:05d}.mds"


def _about(target: np.dtype[Any]) -> dict[str, Any]:
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{target.name}"],
        "column_sizes": [None],
    }


def _config(target: np.dtype[Any]) -> bytes:
    return json.dumps(_about(target), sort_keys=True).encode()


def _write_index(place: Path, stream: Stream, target: np.dtype[Any]) -> None:
    listed = []
    for number, documents in enumerate(stream.table.documents.tolist()):
        name = _mds_name(number)
        raw = {"basename": name, "bytes": (place / name).stat().st_size, "hashes": {}}
        listed.append(_about(target) | {"raw_data": raw, "samples": documents, "zip_data": None})
    (place / "index.json").write_text(json.dumps({"version": 2, "shards": listed}, sort_keys=True))


WRITERS: dict[Kind, Callable[[Path, int, Shard, np.dtype[Any]], Iterator[int]]] = {
    "mds": _mds,
    "ds": _ds,
    "npy": _npy,
}
"""Each writes one shard, and yields how many tokens it has written since."""
