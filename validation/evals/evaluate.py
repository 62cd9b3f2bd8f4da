"""The body of stage `evaluate`: bits per byte on the held-out split, and a generated sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.manifest import Artifact, read_manifest
from bloomery.artifacts.stage import Context
from bloomery.config.release import EvaluateConfig, Weights
from bloomery.errors import BloomeryError
from bloomery.shards.stream import TokenStream
from training.bits import Score, token_bytes
from training.checkpoint import Reader
from training.mirror import connect
from training.model import Decoder

TEMPERATURE = 0.8


def evaluate(context: Context) -> dict[str, Artifact]:
    """Scores a checkpoint.

    Returns:
        eval: canonical JSON {bits_per_byte, loss, nats, tokens, bytes, step, prompt, sample}.

    Raises:
        BloomeryError: the held-out split has no whole sequence.
        CheckpointError: the checkpoint is damaged.
    """
    config: EvaluateConfig = context.config
    parallel = context.execution.parallelism
    torch.set_num_threads(parallel.threads)
    checkpoint = context.inputs["checkpoint"]
    reader = Reader(checkpoint.local(context.scratch), checkpoint.output.digest)
    model = load_model(reader, config.weights)
    text = context.inputs["tokenizer"].local(context.scratch).read_bytes()
    stream = TokenStream.open(context.inputs["shards"].local(context.scratch), "held_out")
    score = bits(
        model,
        stream,
        text,
        reader.index.train.sequence_length,
        config.max_tokens,
        parallel.micro_batch,
        context.log,
    )
    sample = generate(
        model,
        Tokenizer.from_str(text.decode()),
        config.sample_prompt,
        config.sample_tokens,
        reader.index.train.sequence_length,
    )
    found = {"bits_per_byte": score.bits_per_byte, "loss": score.loss, "step": reader.index.step}
    context.log(
        f"step {reader.index.step}: {score.bits_per_byte:.4f} bits per byte over {score.tokens:,} tokens"
    )
    log_to_mlflow(context, found)
    whole = {**found, **score._asdict(), "prompt": config.sample_prompt, "sample": sample}
    return {"eval": context.blob("eval", canonical(whole), tokens=score.tokens, facts=found)}


def load_model(reader: Reader, weights: Weights = "trained") -> Decoder:
    """The model of a checkpoint in fp32, ready to score."""
    model = Decoder(reader.index.train.model, reader.index.vocab_size)
    model.load_state_dict(dict(reader.weights(weights)))
    return model.eval()


@torch.no_grad()
def bits(
    model: Decoder,
    stream: TokenStream,
    tokenizer: bytes,
    length: int,
    max_tokens: int,
    batch: int,
    log: Callable[[str], None],
) -> Score:
    """Scores the first `max_tokens` targets of a split in sequences of `length`, `batch` at a time."""
    count = min(stream.sequences(length), max(1, max_tokens // length))
    if not stream.sequences(length):
        raise BloomeryError(
            f"the held-out split has {len(stream)} tokens, fewer than one sequence of {length}",
            "raise corpus.dedup.held_out or add documents",
        )
    sizes = torch.from_numpy(token_bytes(tokenizer))
    nats, tokens, text_bytes = 0.0, 0, 0
    for start in range(0, count, batch):
        found = stream.gather(np.arange(start, min(start + batch, count)), length)
        ids, positions = torch.from_numpy(found.tokens), torch.from_numpy(found.positions)
        nats += model.losses(model(ids[:, :-1], positions), ids[:, 1:]).double().sum().item()
        tokens += ids[:, 1:].numel()
        text_bytes += int(sizes[ids[:, 1:]].sum())
        if (start // batch) % 8 == 7:
            log(f"{tokens:,} of {count * length:,} tokens scored")
    return Score(nats, tokens, text_bytes)


@torch.no_grad()
def generate(model: Decoder, tokenizer: Tokenizer, prompt: str, count: int, window: int) -> str:
    """The prompt continued by `count` tokens, drawn at temperature 0.8 from a fixed seed."""
    ids = tokenizer.encode(prompt).ids
    random = torch.Generator().manual_seed(0)
    for _ in range(count if ids else 0):
        logits = model(torch.tensor([ids[-window:]]))[0, -1]
        ids.append(int(torch.multinomial((logits / TEMPERATURE).softmax(-1), 1, generator=random)))
    text: str = tokenizer.decode(ids)
    return text


def log_to_mlflow(context: Context, found: dict[str, Any]) -> None:
    """Logs the eval on the checkpoint's LoggedModel; MLflow's outage costs a line in the log only."""
    digest = context.sources["checkpoint"]
    run = str(read_manifest(context.store, digest).spec.config.get("run", digest))
    try:
        client, run_id = connect(context.about.get("name", "bloomery"), run)
        experiment = client.get_run(run_id).info.experiment_id
        tag = "bloomery.checkpoint"
        known = client.search_logged_models([experiment], filter_string=f"tags.`{tag}` = '{digest}'")
        if known:
            model_id = known[0].model_id
        else:
            model = client.create_logged_model(
                experiment, name=f"step-{found['step']}", source_run_id=run_id, tags={tag: digest}
            )
            model_id = client.finalize_logged_model(model.model_id, "READY").model_id
        for name in ("bits_per_byte", "loss"):
            client.log_metric(run_id, f"eval_{name}", found[name], step=found["step"], model_id=model_id)
    except Exception as error:
        context.log(f"MLflow does not take the eval, it stands in the store: {error!s:.200}")
