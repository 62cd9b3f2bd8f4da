"""Shard: token ids of every surviving document, written in place by the executors as a dataset of shards.

    documents -> ids + separator, key = xxhash64(seed, id)                           (a scratch table)
    exact histogram of tokens over 2^20 ranges of the key -> each shard's first key
    file names of each source -> tables/files/<source>
    rows sorted by (shard, key, id) -> NAME.bin .idx .side; a row a shard            (written by executors)
    rows -> tables/<split>/<source>.shards, manifest.json                            (the commit)

What is written of a document follows from the set of documents alone, and a shard's names from its bytes:
partitions, retries and speculation make the same files. The format: bloomery.shards.dataset.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.artifacts.store import LocalStore, Store
from bloomery.config.corpus import ShardConfig
from bloomery.shards.dataset import MANIFEST, Manifest, Policy, names_path
from bloomery.shards.keys import SIGN, parse_ids
from bloomery.shards.side import ORIGIN
from bloomery.shards.table import Names, ShardInfo, names_bytes
from bloomery.shards.write import Documents, Shards, ShardWriter, dataset_files, host
from spark_jobs.encoder import Encoder
from spark_jobs.engine import functions, session
from spark_jobs.histogram import Plans, histogram, plan, stream_of, unsigned
from spark_jobs.tables import check_balance, read_table, record_batch, scratch_table
from spark_jobs.tokenizer import SEPARATOR, load

READ = ("id", "source", "split", "path", "member", "offset", "length", "url", "text")
TOKENS = (
    "id string, source string, split string, path string, member bigint, offset bigint, length bigint, "
    "host string, tokens binary, count bigint, bytes bigint"
)
NUMBERED = (
    "id string, member bigint, offset bigint, length bigint, host string, tokens binary, count bigint, "
    "bytes bigint, key bigint, file bigint, number int"
)
WRITTEN = (
    "number int, name string, first_key bigint, documents bigint, tokens bigint, bytes bigint, "
    "side_bytes bigint, bin_sha256 string, idx_sha256 string, side_sha256 string, widths array<bigint>"
)
"""A row a shard, as ShardInfo has it; `widths` counts its documents by the bits of their tokens."""


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `shard`.

    Raises:
        TokenizerError: a tokenizer of no use.
        BalanceError: documents or tokens were lost or doubled.
    """
    config: ShardConfig = context.config
    documents, tokenizer = context.inputs["documents"], context.inputs["tokenizer"].read()
    vocabulary = load(tokenizer)
    policy = Policy.of(
        sha256(tokenizer), vocabulary.get_vocab_size(), vocabulary.token_to_id(SEPARATOR), config.seed
    )
    place = context.place("shards")
    with session(context) as spark:
        kept = read_table(spark, documents).where("status = 'kept'").select(*READ)
        encoded = kept.mapInArrow(partial(_encode, tokenizer, policy.dtype), TOKENS)
        tokens = _with_key(scratch_table(spark, context, "tokens", encoded), config.seed)
        ranges = histogram(spark, tokens, policy, config.target_bytes)
        plans = plan(ranges, policy, config.target_bytes)
        names = _names(tokens)
        for source, data in names.items():
            context.store.put_new(f"{place}/{names_path(source)}", data)
        ordered = _by_shard(tokens, plans, context.store, place, context.execution.spark.partitions)
        rows = ordered.mapInArrow(partial(_write, context.store, place, policy, plans), WRITTEN).collect()
    context.store.remove(context.place("scratch"))
    _sweep(context.store, place)
    shards: Shards = defaultdict(list)
    widths = Counter[str]()
    for row in rows:
        shards[stream_of(plans, row["number"])].append(_info(row))
        widths.update({str(bits): count for bits, count in enumerate(row["widths"]) if count})
    manifest = _finish(context, dataset_files(policy, documents.output.digest, shards, names))
    train = manifest.streams["train"]
    totals = {split: manifest.totals(split) for split in manifest.streams}
    whole = {name: sum(total[name] for total in totals.values()) for name in ("documents", "tokens", "bytes")}
    check_balance("shard", documents.output.documents, whole["documents"])
    check_balance("shard", sum(int(found.tokens.sum()) for found in ranges.values()), whole["tokens"])
    facts = {
        "sources": {source: train[source].tokens if source in train else 0 for source in manifest.files},
        "lengths": dict(sorted(widths.items())),
        "splits": totals,
    }
    return {"shards": context.artifact("shards", Output(digest=manifest.digest, facts=facts, **whole))}


def _encode(tokenizer: bytes, dtype: str, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoder = Encoder(tokenizer, np.dtype(dtype))
    for batch in batches:
        texts = batch.column("text")
        tokens = pa.array((encoder.encode(text.as_py()) for text in texts), pa.binary())
        counts = pc.divide(pc.binary_length(tokens).cast(pa.int64()), np.dtype(dtype).itemsize)
        sizes = pc.binary_length(texts).cast(pa.int64())
        hosts = pa.array([host(url) for url in batch.column("url").to_pylist()], pa.string())
        known = batch.drop_columns(["text", "url"])
        columns = [*known.columns, hosts, tokens, counts, sizes]
        yield pa.RecordBatch.from_arrays(columns, [*known.schema.names, "host", "tokens", "count", "bytes"])


def _with_key(tokens: Any, seed: int) -> Any:
    """Adds `key`, which spreads documents over shards and orders them: signed, as Spark has it."""
    F = functions()  # noqa: N806
    return tokens.withColumn("key", F.xxhash64(F.lit(seed).cast("bigint"), F.col("id")))


def _names(tokens: Any) -> dict[str, bytes]:
    """Table of file names of each source."""
    paths = defaultdict(list)
    table = tokens.select("source", "path").distinct().toArrow()
    for source, path in zip(table["source"].to_pylist(), table["path"].to_pylist(), strict=True):
        paths[source].append(path)
    return {source: names_bytes(found) for source, found in sorted(paths.items())}


def _by_shard(tokens: Any, plans: Plans, store: Store, place: str, partitions: int) -> Any:
    """Rows with the `number` of their shard, one shard in one partition, in the shard's order."""
    shards = max(1, sum(len(plan.keys) for plan in plans.values()))
    numbered = tokens.mapInArrow(partial(_number, plans, store, place), NUMBERED)
    tasks = min(shards, max(partitions, math.ceil(shards / 4)))
    return numbered.repartitionById(tasks, "number").sortWithinPartitions("number", "key", "id")


def _number(plans: Plans, store: Store, place: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Adds the number of each document's shard and that of its file, and drops what they stand for."""
    import pyarrow as pa

    with tempfile.TemporaryDirectory(prefix="bloomery-names-") as cache:

        @lru_cache
        def names(source: str) -> Names:
            return Names.open(store.fetch(f"{place}/{names_path(source)}", Path(cache)))

        @lru_cache(1 << 16)
        def file(source: str, path: str) -> int:
            return names(source).number(path)

        for batch in batches:
            splits, sources, paths = (batch.column(name).to_pylist() for name in ("split", "source", "path"))
            files = pa.array(map(file, sources, paths), pa.int64())
            streams, keys = list(zip(splits, sources, strict=True)), unsigned(batch.column("key").to_numpy())
            numbers = np.empty(len(keys), np.int32)
            for stream in set(streams):
                rows = np.flatnonzero([found == stream for found in streams])
                numbers[rows] = (
                    plans[stream].first - 1 + np.searchsorted(plans[stream].keys, keys[rows], "right")
                )
            rest = batch.drop_columns(["split", "source", "path"])
            columns = [*rest.columns, files, pa.array(numbers)]
            yield pa.RecordBatch.from_arrays(columns, [*rest.schema.names, "file", "number"])


def _write(store: Store, place: str, policy: Policy, plans: Plans, batches: Iterator[Any]) -> Iterator[Any]:
    """Writes each shard of the partition; yields a row of WRITTEN for each."""
    for number, pieces in groupby(_pieces(batches), key=itemgetter(0)):
        split, source = stream_of(plans, number)
        widths = np.zeros(33, np.int64)
        with tempfile.TemporaryDirectory(prefix="bloomery-shard-") as folder:
            with ShardWriter(Path(folder), policy) as writer:
                for _, piece in pieces:
                    documents = _documents(piece, policy.dtype)
                    widths += np.bincount(np.frexp(documents.lengths)[1], minlength=33)
                    writer.append(documents)
                info = writer.finish()
            for name in info.files():
                store.upload(Path(folder, name), f"{place}/{split}/{source}/{name}")
        row = info._replace(first_key=info.first_key - int(SIGN))
        yield record_batch([(number, *row, widths.tolist())], WRITTEN)


def _pieces(batches: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """(number of the shard, rows of a batch that belong to it), in order."""
    for batch in batches:
        numbers = batch.column("number").to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(cuts):
            if start < stop:
                yield int(numbers[start]), batch.slice(start, stop - start)


def _documents(rows: Any, dtype: str) -> Documents:
    """Rows as arrays; the tokens are a view of Arrow's buffer."""
    import pyarrow.compute as pc

    tokens = rows.column("tokens")
    _, offsets, data = tokens.buffers()
    ends = np.frombuffer(offsets, "<i4")[tokens.offset : tokens.offset + len(tokens) + 1]
    origins = np.empty(len(rows), ORIGIN)
    origins["member"] = pc.fill_null(rows.column("member"), -1).to_numpy(zero_copy_only=False)
    for name in ("offset", "length", "file"):
        origins[name] = rows.column(name).to_numpy()
    return Documents(
        ids=parse_ids(rows.column("id").to_pylist()),
        tokens=np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].view(dtype),
        lengths=rows.column("count").to_numpy(),
        bytes=pc.sum(rows.column("bytes")).as_py(),
        hosts=rows.column("host").to_pylist(),
        origins=origins,
    )


def _info(row: Any) -> ShardInfo:
    found = {name: row[name] for name in ShardInfo._fields}
    return ShardInfo(**found | {"first_key": row["first_key"] + int(SIGN)})


def _finish(context: Context, files: Mapping[str, bytes]) -> Manifest:
    """Writes the tables and, as the last file of the folder, manifest.json."""
    for name, data in files.items():
        context.store.put_new(context.place(f"shards/{name}"), data)
    return Manifest.model_validate_json(files[MANIFEST])


def _sweep(store: Store, place: str) -> None:
    """Removes what a killed upload left; on S3 an upload is whole or absent."""
    if isinstance(store, LocalStore):
        for path in (store.root / place).rglob(".tmp-*"):
            path.unlink(missing_ok=True)
