"""The body of stage `export`: a checkpoint as a folder that transformers loads.

model.safetensors  config.json  generation_config.json  tokenizer.json  tokenizer_config.json  README.md
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bloomery.artifacts.digests import file_digest, tree_digest
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.config.release import ExportConfig
from training.checkpoint import Reader
from training.hf import hf_config, hf_weights
from training.layout import Index
from validation.release.card import model_card

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export(context: Context) -> dict[str, Artifact]:
    """Exports a checkpoint.

    Returns:
        model: the folder.

    Raises:
        CheckpointError: the checkpoint is damaged.
        ExportError: no class of transformers holds the model.
    """
    config: ExportConfig = context.config
    checkpoint, tokenizer = context.inputs["checkpoint"], context.inputs["tokenizer"]
    reader = Reader(checkpoint.local(context.scratch), checkpoint.output.digest)
    text = tokenizer.local(context.scratch).read_bytes()
    measured = json.loads(context.inputs["eval"].read()) if "eval" in context.inputs else {}
    folder = context.scratch / "model"
    folder.mkdir()
    masters = hf_weights(reader.index.train.model, reader.weights(config.weights))
    weights = {  # a router's bias differs from others by thousandths
        name: tensor if name.endswith("correction_bias") else tensor.to(DTYPES[config.dtype])
        for name, tensor in masters.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    special = end_of_text(text)
    documents = {
        "config.json": config_json(reader.index, config, special),
        "generation_config.json": {"eos_token_id": special[0]} if special else {},
        "tokenizer_config.json": tokenizer_config(reader.index, special),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    (folder / "tokenizer.json").write_bytes(text)
    size = sum(tensor.numel() for tensor in weights.values())
    (folder / "README.md").write_text(
        model_card(reader.index, checkpoint.output.digest, size, config.dtype, measured)
    )
    return {"model": upload(context, "model", folder)}


def config_json(index: Index, config: ExportConfig, special: tuple[int, str] | None) -> dict[str, Any]:
    """config.json of the class that holds the model."""
    shape = hf_config(index.train.model, index.vocab_size, index.train.sequence_length)
    return shape | {
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}[config.dtype],
        "bos_token_id": None,
        "eos_token_id": special[0] if special else None,
    }


def end_of_text(tokenizer: bytes) -> tuple[int, str] | None:
    """Id and text of the tokenizer's first special token, which ends a document; None without any."""
    specials = [t for t in json.loads(tokenizer).get("added_tokens", []) if t["special"]]
    return (specials[0]["id"], specials[0]["content"]) if specials else None


def tokenizer_config(index: Index, special: tuple[int, str] | None) -> dict[str, Any]:
    """tokenizer_config.json of a PreTrainedTokenizerFast."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": index.train.sequence_length,
        "clean_up_tokenization_spaces": False,
        **({"eos_token": special[1], "pad_token": special[1]} if special else {}),
    }


def upload(context: Context, name: str, folder: Path) -> Artifact:
    """Writes a local folder as output `name`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    for relative, path in names.items():
        context.store.upload(path, f"{context.place(name)}/{relative}")
    digest = tree_digest({relative: file_digest(path) for relative, path in names.items()})
    return context.artifact(
        name, Output(digest=digest, bytes=sum(path.stat().st_size for path in names.values()))
    )
