"""The body of stage `export`: a checkpoint as a folder that transformers loads.

model.safetensors  config.json  generation_config.json  tokenizer.json  tokenizer_config.json  README.md

Above 5 GB the weights are model-00001-of-00042.safetensors and so on, with model.safetensors.index.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bloomery.artifacts.digests import file_digest, tree_digest
from bloomery.artifacts.manifest import Artifact, Output
from bloomery.artifacts.stage import Context
from bloomery.config.release import ExportConfig
from training.checkpoint import Reader
from training.hf import hf_config, hf_weights
from training.layout import Index
from validation.release.card import model_card

SHARD = 5_000_000_000
"""Most bytes of a file of weights."""
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
    size = save_weights(folder, as_released(masters, DTYPES[config.dtype]))
    special = end_of_text(text)
    documents = {
        "config.json": config_json(reader.index, config, special),
        "generation_config.json": {"eos_token_id": special[0]} if special else {},
        "tokenizer_config.json": tokenizer_config(reader.index, special),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    (folder / "tokenizer.json").write_bytes(text)
    (folder / "README.md").write_text(
        model_card(reader.index, checkpoint.output.digest, size, config.dtype, measured)
    )
    return {"model": upload(context, "model", folder)}


def as_released(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Weights in the dtype of a release, but for a router's bias: it differs from others by thousandths."""
    for name, weight in weights:
        yield name, weight if name.endswith("correction_bias") else weight.to(dtype)


def save_weights(folder: Path, weights: Iterable[tuple[str, Tensor]], most: int = SHARD) -> int:
    """Writes weights as one file, or as several of at most `most` bytes with an index, one in memory at a
    time.

    Returns:
        Parameters written.
    """
    held: dict[str, Tensor] = {}
    files: list[list[str]] = []
    parameters = size = 0

    def flush() -> None:
        save_file(held, folder / str(len(files)), metadata={"format": "pt"})
        files.append(sorted(held))
        held.clear()

    for name, weight in weights:
        if held and weight.nbytes + sum(other.nbytes for other in held.values()) > most:
            flush()
        held[name] = weight
        parameters, size = parameters + weight.numel(), size + weight.nbytes
    flush()
    places = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        places = ["model.safetensors"]
    for number, place in enumerate(places):
        (folder / str(number)).rename(folder / place)
    if len(files) > 1:
        where = {name: place for place, names in zip(places, files, strict=True) for name in names}
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2, sort_keys=True) + "\n"
        )
    return parameters


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
