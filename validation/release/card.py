"""The model card of a release: what it is, what it was made of, what it was measured at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.layout import Index


def model_card(
    index: Index, checkpoint: str, parameters: int, dtype: str, measured: Mapping[str, Any]
) -> str:
    """README.md in the layout of the Hugging Face Hub."""
    train, model = index.train, index.train.model
    tokens = index.samples * train.sequence_length
    rows = [
        ("Parameters", f"{parameters:,}"),
        (
            "Layers, width, heads, key-value heads",
            f"{model.layers}, {model.width}, {model.heads}, {model.kv_heads}",
        ),
        ("Feed-forward width", f"{model.ffn_width}"),
        ("Vocabulary", f"{index.vocab_size:,}"),
        ("Context", f"{train.sequence_length} tokens"),
        ("Weights", dtype),
        ("Trained on", f"{tokens:,} tokens in {index.step:,} steps of {train.global_batch} sequences"),
        ("Optimizer", f"AdamW, peak learning rate {train.learning_rate:g}, seed {train.seed}"),
    ]
    digests = [
        ("Checkpoint", checkpoint),
        ("Token shards", index.dataset),
        ("Tokenizer", index.tokenizer),
        ("Receipt of the samples read", index.receipt),
    ]
    scores = (
        []
        if not measured
        else [
            ("Bits per byte, held out", f"{measured['bits_per_byte']:.4f}"),
            ("Loss, nats a token", f"{measured['loss']:.4f}"),
            ("Tokens scored", f"{measured['tokens']:,}"),
        ]
    )
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            "tags: [bloomery, llama]",
            "---",
            "",
            "# Model card",
            "",
            "A Llama-style decoder, trained from scratch by Bloomery. A base model: it continues text, was "
            "not tuned to follow instructions, and not checked for safety.",
            "",
            *_table("Model", rows),
            *(_table("Evaluation", scores) if measured else []),
            *_table("Provenance (sha256)", [(name, f"`{digest}`") for name, digest in digests]),
        ]
    )


def _table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    return [f"## {title}", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
