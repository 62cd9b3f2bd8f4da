"""Tokenizer: a byte-level BPE (Sennrich et al. 2016; GPT-2's byte alphabet and split) trained on the
corpus, or one pinned by digest.

The sample is drawn by a hash of each training document's id, so it is the same for any partitioning. No
text can be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.manifest import Artifact
from bloomery.artifacts.stage import Context
from bloomery.config.corpus import TokenizerConfig
from bloomery.errors import BloomeryError
from spark_jobs.engine import functions, session
from spark_jobs.tables import read_table

SEPARATOR = "<|endoftext|>"
"""Stands between documents: the end of one, the begin of the next."""
BUCKETS = 1 << 12


class TokenizerError(BloomeryError):
    """No tokenizer can be had: nothing to train on, or a pinned one that is absent or of no use."""


def run(context: Context) -> Mapping[str, Artifact]:
    """Body of the stage `tokenizer`.

    Raises:
        TokenizerError: an empty corpus; a pinned tokenizer that is absent, altered or lacks the separator.
    """
    config: TokenizerConfig = context.config
    if config.pinned:
        data, texts = _pinned(context, config.pinned), []
    else:
        texts = _sample(context, config.sample_bytes)
        data = train(texts, config.vocab_size)
    facts = {"vocab_size": load(data).get_vocab_size(), "sample_documents": len(texts)}
    return {"tokenizer": context.blob("tokenizer", data, facts=facts)}


def train(texts: Iterable[str], vocab_size: int) -> bytes:
    """tokenizer.json of a byte-level BPE with at most `vocab_size` entries, the separator first (id 0)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str()).encode()


def load(data: bytes) -> Any:
    """The tokenizer of a tokenizer.json; a separator that stands in a text is encoded as text, never as the
    separator. A text is encoded whole and alone, whatever the file says of truncation and padding.

    Raises:
        TokenizerError: not a tokenizer.json, or without the separator.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises Exception itself
        raise TokenizerError(f"not a tokenizer.json: {error}", "pin another, or train one") from error
    if tokenizer.token_to_id(SEPARATOR) is None:
        raise TokenizerError(f"the tokenizer has no token {SEPARATOR}", "pin one that has, or train one")
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _pinned(context: Context, digest: str) -> bytes:
    found = context.store.get(f"cas/{digest}")
    if found is None:
        raise TokenizerError(
            f"the pinned tokenizer cas/{digest} is not in the store",
            "put its tokenizer.json there under its sha256",
        )
    if sha256(found.data) != digest:
        raise TokenizerError(
            f"cas/{digest} has sha256 {sha256(found.data)}: it was altered", "put it there again"
        )
    load(found.data)
    return found.data


def _sample(context: Context, most: int) -> list[str]:
    """Texts of training documents by id: whole hash buckets, as many as fit into `most` bytes."""
    F = functions()  # noqa: N806
    with session(context) as spark:
        bucket = F.pmod(F.xxhash64(F.col("id")), F.lit(BUCKETS))
        documents = (
            read_table(spark, context.inputs["documents"])
            .where("split = 'train'")
            .withColumn("bucket", bucket)
        )
        sizes = dict(documents.groupBy("bucket").agg(F.sum("bytes")).collect())
        total, last = 0, -1
        for number in sorted(sizes):
            if total + sizes[number] > most and last >= 0:
                break
            total, last = total + sizes[number], number
        chosen = documents.where(F.col("bucket") <= last).select("id", "text").toArrow()
    if not len(chosen):
        raise TokenizerError(
            "no training document survived cleaning and deduplication", "see the funnel of `clean`"
        )
    return [str(text) for text in chosen.sort_by("id").column("text").to_pylist()]
