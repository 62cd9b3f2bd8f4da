"""Shard: token ids of every surviving document as Megatron `.bin/.idx` pairs, written in place by executors.

    documents -> ids + separator, key = xxhash64(seed, id)                            (job 1, scratch table)
    exact histogram of tokens over 2^20 ranges of the key -> each shard's range       (job 2)
    rows sorted by (split, shard, key, id) -> NAME.bin, NAME.idx; a row a document    (job 3, table `index`)

Names follow from the bytes: partitions, retries and speculation make the same files. The folder:

    manifest.json        tokenizer, separator, dtype, seed; per split its shards with sizes and sha256
    train/  held_out/    the pairs
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.artifacts.canonical import canonical, sha256
from bloomery.artifacts.digests import tree_digest
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore, Store
from bloomery.config.corpus import ShardConfig
from bloomery.shards.format import ShardInfo, token_dtype, write_shard
from spark_jobs.encoder import Encoder
from spark_jobs.engine import functions, session
from spark_jobs.tables import Profile, check_balance, read_table, record_batch, scratch_table, write_table
from spark_jobs.tokenizer import SEPARATOR, load

SPLITS = ("train", "held_out")
BUCKET_BITS = 20
TOKENS = "id string, source string, split string, tokens binary, count bigint, bytes bigint"
INDEX = (
    "id string, split string, number bigint, shard string, position bigint, tokens bigint, bytes bigint, "
    "bin_sha256 string, idx_sha256 string"
)
GROUP = ("split", "number", "shard", "bin_sha256", "idx_sha256")


Bounds = Mapping[str, npt.NDArray[np.int64]]
"""Per split the first bucket of each shard: [shards]. A shard ends where the next begins."""


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `shard`.

    Raises:
        TokenizerError: a tokenizer of no use.
        BalanceError: documents were lost or doubled.
    """
    config: ShardConfig = context.config
    documents, tokenizer = context.inputs["documents"], context.inputs["tokenizer"].read()
    vocabulary = load(tokenizer)
    dtype = token_dtype(vocabulary.get_vocab_size())
    with session(context) as spark:
        kept = read_table(spark, documents).where("status = 'kept'").select("id", "source", "split", "text")
        encoded = kept.mapInArrow(partial(_encode, tokenizer, dtype.str), TOKENS)
        tokens = _with_key(scratch_table(spark, context, "tokens", encoded), config.seed)
        bounds = _bounds(tokens, max(1, config.target_bytes // dtype.itemsize))
        facts = _facts(tokens)
        ordered = _by_shard(tokens, bounds, context.execution.spark.partitions)
        rows = ordered.mapInArrow(partial(_write, context.store, context.place("shards"), dtype.str), INDEX)
        profile = write_table(spark, context, "index", rows, GROUP, ("tokens", "bytes"))
    context.store.remove(context.place("scratch"))
    _sweep(context.store, context.place("shards"))
    check_balance("shard", documents.output.documents, profile.rows)
    manifest = {
        "schema": 1,
        "tokenizer": sha256(tokenizer),
        "vocab_size": vocabulary.get_vocab_size(),
        "eos_id": vocabulary.token_to_id(SEPARATOR),
        "dtype": dtype.str,
        "seed": config.seed,
        "splits": {split: _split(profile, split, bounds) for split in SPLITS},
    }
    return {
        "shards": _folder(context, manifest, facts),
        "index": context.artifact("index", Output(digest=profile.digest, rows=profile.rows)),
    }


def _encode(tokenizer: bytes, dtype: str, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoder = Encoder(tokenizer, np.dtype(dtype))
    for batch in batches:
        texts = batch.column("text")
        tokens = pa.array((encoder.encode(text.as_py()) for text in texts), pa.binary())
        counts = pc.divide(pc.binary_length(tokens).cast(pa.int64()), np.dtype(dtype).itemsize)
        sizes = pc.binary_length(texts).cast(pa.int64())
        known = batch.drop_columns(["text"])
        columns = [*known.columns, tokens, counts, sizes]
        yield pa.RecordBatch.from_arrays(columns, [*known.schema.names, "tokens", "count", "bytes"])


def _with_key(tokens: Any, seed: int) -> Any:
    """Adds `key`, which spreads documents over shards and orders them, and `bucket`, its leading bits."""
    F = functions()  # noqa: N806
    key = F.xxhash64(F.lit(seed).cast("bigint"), F.col("id"))
    half = 1 << (BUCKET_BITS - 1)  # the key is signed: its order is that of the buckets
    bucket = F.shiftright("key", 64 - BUCKET_BITS) + F.lit(half)
    return tokens.withColumn("key", key).withColumn("bucket", bucket)


def _bounds(tokens: Any, target: int) -> Bounds:
    """The shards that an exact histogram of tokens over buckets asks for."""
    F = functions()  # noqa: N806
    counted = tokens.groupBy("split", "bucket").agg(F.sum("count").alias("tokens")).toArrow()
    found = {}
    for split in SPLITS:
        rows = sorted((b, t) for s, b, t in zip(*counted.to_pydict().values(), strict=True) if s == split)
        histogram = np.array(rows, np.int64).reshape(-1, 2)
        found[split] = spread(histogram[:, 0], histogram[:, 1], target)
    return found


def spread(
    buckets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], target: int
) -> npt.NDArray[np.int64]:
    """First bucket of each shard, such that shards hold about `target` tokens and about equally many:
    [shards].

    Args:
        buckets: occupied buckets, ascending: [occupied].
        sizes: tokens in each: [occupied].
        target: tokens that a shard aims at.
    """
    if not len(buckets):
        return np.zeros(0, np.int64)
    total = int(sizes.sum())
    shards = max(1, round(total / target))
    before = np.cumsum(sizes) - sizes
    number = before * shards // total
    return buckets[np.flatnonzero(np.diff(number, prepend=-1))]


def _by_shard(tokens: Any, bounds: Bounds, partitions: int) -> Any:
    """Rows with the `number` of their shard, one shard in one partition, in the shard's order."""
    columns = "id string, split string, tokens binary, count bigint, bytes bigint, key bigint, number bigint"
    shards = max(1, sum(len(first) for first in bounds.values()))
    numbered = tokens.select("id", "split", "tokens", "count", "bytes", "key", "bucket").mapInArrow(
        partial(_number, bounds), columns
    )
    spread_out = numbered.repartition(min(shards, max(partitions, math.ceil(shards / 4))), "split", "number")
    return spread_out.sortWithinPartitions("split", "number", "key", "id")


def _number(bounds: Bounds, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches:
        buckets, splits = batch.column("bucket").to_numpy(), batch.column("split").to_pylist()
        numbers = {split: np.searchsorted(first, buckets, "right") - 1 for split, first in bounds.items()}
        chosen = np.array([numbers[split][row] for row, split in enumerate(splits)], np.int64)
        yield batch.drop_columns(["bucket"]).append_column("number", pa.array(chosen))


def _write(store: Store, place: str, dtype: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Writes each shard of the partition; yields a row of the index a document."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for (split, number), documents in groupby(rows, key=lambda row: (row["split"], row["number"])):
        written: list[tuple[str, int, int]] = []
        with tempfile.TemporaryDirectory(prefix="bloomery-shard-") as folder:
            info = write_shard(Path(folder), _ids(documents, dtype, written), np.dtype(dtype))
            for kind in ("bin", "idx"):
                store.upload(Path(folder, f"{info.name}.{kind}"), f"{place}/{split}/{info.name}.{kind}")
        yield record_batch(_index_rows(info, split, number, written), INDEX)


def _ids(
    documents: Iterator[dict[str, Any]], dtype: str, written: list[tuple[str, int, int]]
) -> Iterator[npt.NDArray[np.integer[Any]]]:
    """Token ids of each document in turn; notes its (id, tokens, bytes) in `written`."""
    for row in documents:
        written.append((row["id"], row["count"], row["bytes"]))
        yield np.frombuffer(row["tokens"], dtype)


def _index_rows(
    info: ShardInfo, split: str, number: int, written: list[tuple[str, int, int]]
) -> list[tuple[Any, ...]]:
    return [
        (name, split, number, info.name, position, tokens, size, info.bin_sha256, info.idx_sha256)
        for position, (name, tokens, size) in enumerate(written)
    ]


def _split(profile: Profile, split: str, bounds: Bounds) -> dict[str, Any]:
    """A split in the manifest: totals, and its shards in the order of their keys."""
    counts = profile.counts_by(*GROUP)
    tokens, sizes = profile.sums_by("tokens", *GROUP), profile.sums_by("bytes", *GROUP)
    found = sorted((key for key in counts if key[0] == split), key=lambda key: int(key[1]))
    totals = {
        "documents": sum(counts[key] for key in found),
        "tokens": sum(tokens[key] for key in found),
        "bytes": sum(sizes[key] for key in found),
    }
    shards = [
        {
            "name": key[2],
            "documents": counts[key],
            "tokens": tokens[key],
            "bytes": sizes[key],
            "first_bucket": int(bounds[split][int(key[1])]),
            "bin_sha256": key[3],
            "idx_sha256": key[4],
        }
        for key in found
    ]
    return totals | {"shards": shards}


def _facts(tokens: Any) -> dict[str, dict[str, int]]:
    """Training tokens by source, and documents by the number of bits of their tokens."""
    F = functions()  # noqa: N806
    bits = F.length(F.bin("count")).alias("bits")
    found = tokens.groupBy("split", "source", bits).agg(F.sum("count"), F.count("*")).collect()
    sources, lengths = Counter[str](), Counter[str]()
    for split, source, width, total, documents in found:
        sources[source] += total if split == "train" else 0
        lengths[str(width)] += documents
    return {"sources": dict(sorted(sources.items())), "lengths": dict(sorted(lengths.items()))}


def _folder(context: Context, manifest: dict[str, Any], about: Mapping[str, Any]) -> Artifact:
    """Writes manifest.json, the last file of the folder, and returns the output."""
    data, splits = canonical(manifest), manifest["splits"]
    context.store.put_new(context.place("shards/manifest.json"), data)
    files = {"manifest.json": sha256(data)}
    for split, found in splits.items():
        for shard in found["shards"]:
            files |= {f"{split}/{shard['name']}.{kind}": shard[f"{kind}_sha256"] for kind in ("bin", "idx")}
    totals = {
        name: sum(found[name] for found in splits.values()) for name in ("documents", "tokens", "bytes")
    }
    facts = {
        split: {name: found[name] for name in ("documents", "tokens", "bytes")}
        | {"shards": len(found["shards"])}
        for split, found in splits.items()
    }
    return context.artifact(
        "shards", Output(digest=tree_digest(files), facts={**about, "splits": facts}, **totals)
    )


def _sweep(store: Store, place: str) -> None:
    """Removes what a killed upload left; on S3 an upload is whole or absent."""
    if isinstance(store, LocalStore):
        for path in (store.root / place).rglob(".tmp-*"):
            path.unlink(missing_ok=True)
