"""Signatures: what near and exact duplicates are told by, one row a kept document; made once a part.

id, source, path, length, url    whose it is
content                          hash of the normalised text: the same for exact duplicates
bands                            keys of the MinHash bands
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import MinHashConfig
from spark_jobs.engine import session
from spark_jobs.parts import gather
from spark_jobs.stages import SIGNATURES_PART
from spark_jobs.tables import FILE, Profile, check_files, read_table, write_table

READ = ("id", "source", "path", "length", "url", "text")
SCHEMA = (
    "id string, source string, path string, length bigint, url string, status string, rule string, "
    "content string, bands array<bigint>"
)


def run_parts(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `signatures`."""
    return gather(context, SIGNATURES_PART)


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `signatures_part`.

    Raises:
        BalanceError: a document of a file was lost or doubled.
    """
    documents = context.inputs["documents"]
    with session(context) as spark:
        kept = read_table(spark, documents).where("status = 'kept'").select(*READ)
        signed = kept.mapInArrow(partial(_sign, context.config), SCHEMA)
        profile = write_table(spark, context, "documents", signed, (*FILE, "status", "rule"), ("length",))
    check_files("signatures", Profile.from_bytes(context.inputs["profile"].read()).kept(), profile)
    return {
        "documents": context.artifact("documents", profile.output()),
        "profile": context.blob("profile", profile.to_bytes()),
    }


def _sign(config: MinHashConfig, batches: Iterator[Any]) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    from spark_jobs.minhash import MinHash, content_of, word_ngrams

    minhash = MinHash.drawn(config)
    for batch in batches:
        texts = batch.column("text").to_pylist()
        keys = minhash.band_keys(np.stack([minhash.sketch(word_ngrams(t, config.ngram)) for t in texts]))
        ends = np.arange(0, keys.size + 1, keys.shape[1], dtype=np.int32)
        yield pa.RecordBatch.from_arrays(
            [
                *batch.drop_columns(["text"]).columns,
                pa.repeat("kept", len(batch)),
                pa.nulls(len(batch), pa.string()),
                pa.array(map(content_of, texts), pa.string()),
                pa.ListArray.from_arrays(ends, keys.ravel()),
            ],
            [column.split()[0] for column in SCHEMA.split(", ")],
        )
