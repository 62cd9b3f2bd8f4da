"""A model of the hub's layout as a checkpoint of ours, from which runs begin: `bloomery import FOLDER`.

    config.json         -> the model's shape; fields that ours has not are refused by name
    *.safetensors       -> masters in fp32, a file a layer, so that one layer is in memory at a time
    tokenizer.json      -> the store's cas/, for corpus.tokenizer.pinned
    all, by their bytes -> a manifest, for train.init_from.checkpoint

Weights alone: no optimizer state. No pickle is read, and nothing is run of what the folder brings.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.digests import file_digest, tree_digest
from bloomery.artifacts.manifest import Artifact, Output, Spec
from bloomery.artifacts.run import commit
from bloomery.artifacts.store import Store
from bloomery.config.base import identity
from bloomery.config.model import ModelConfig
from bloomery.config.training import TrainConfig
from bloomery.shards.overlay import Overlay
from training.hf import ImportRefusedError, hf_names, model_of
from training.layout import HISTORY, INDEX, History, Index, Logical, Part, rank_file
from training.model import Decoder

CONFIG, TOKENIZER, WEIGHTS, SHARDS = (
    *("config.json", "tokenizer.json"),
    *("model.safetensors", "model.safetensors.index.json"),
)


class Imported(NamedTuple):
    """An imported model."""

    manifest: str
    model: ModelConfig
    parameters: int
    tokenizer: str
    """sha256 of its tokenizer.json; "" if it has none."""


def import_model(store: Store, folder: Path) -> Imported:
    """Makes a checkpoint of the model in a folder; the same bytes make the same one.

    Raises:
        ImportRefusedError: names the file, and the field or weight that is not as it should be.
    """
    from transformers import AutoConfig

    if not (folder / CONFIG).is_file():
        raise ImportRefusedError(f"{folder / CONFIG}: no such file", "name the folder of a model")
    config, began = AutoConfig.from_pretrained(folder, local_files_only=True), time.time()
    model, places = model_of(config), _places(folder)
    with torch.device("meta"):
        shapes = {name: place.shape for name, _, place in Decoder(model, config.vocab_size).places()}
    wanted = {name: hf_names(model, name, shape) for name, shape in shapes.items()}
    _check_names(folder, places, {theirs for names in wanted.values() for theirs in names}, model)
    text = (folder / TOKENIZER).read_bytes() if (folder / TOKENIZER).is_file() else b""
    sources = {path.name: file_digest(path) for path in sorted({*places.values(), folder / CONFIG})}
    digest = tree_digest(sources | ({TOKENIZER: sha256(text)} if text else {}))
    if text:
        store.put_new(f"cas/{sha256(text)}", text)
    spec = Spec(stage="import", version=1, config={}, inputs={"model": digest}, libraries={})
    place = f"data/import/{spec.key}/{int(began * 1000)}/weights"
    parts, files = list[Part](), dict[str, str]()
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch)
        for number, (_, names) in enumerate(groupby(wanted, key=_room)):
            file, tensors = rank_file(number), dict[str, Tensor]()
            for name in names:
                part = Part(
                    file=file, name=name, number=0, offset=(0,) * len(shapes[name]), extent=shapes[name]
                )
                tensors[part.key("master")] = _read(places, wanted[name], name, shapes[name])
                parts.append(part)
            save_file(tensors, local / file)
            files[file] = file_digest(local / file)
            store.upload(local / file, f"{place}/{file}")
            (local / file).unlink()
        (local / HISTORY).write_text(History().model_dump_json())
        index = Index(
            step=0,
            updates=0,
            samples=0,
            tokens=0,
            before="",
            receipt="",
            overlay=Overlay(),
            config=identity(TrainConfig(model=model, sequence_length=config.max_position_embeddings)),
            dataset="",
            tokenizer=sha256(text) if text else "",
            vocab_size=config.vocab_size,
            code={},
            ranks=len(files),
            tensors={name: Logical(shape=shape, kinds=("master",)) for name, shape in shapes.items()},
            parts=tuple(parts),
            files={**files, HISTORY: file_digest(local / HISTORY)},
        )
        (local / INDEX).write_bytes(index.to_bytes())
        for name in (HISTORY, INDEX):
            store.upload(local / name, f"{place}/{name}")
    weights = Artifact(Output(digest=index.digest, facts={"step": 0}), place, store)
    made = commit(store, spec, {"weights": weights}, {}, f"{int(began * 1000)}", began)
    size = sum(math.prod(shape) for shape in shapes.values())
    return Imported(made.digest, model, size, index.tokenizer)


def _room(name: str) -> str:
    """What is written to one file: a layer, or a weight outside them."""
    return ".".join(name.split(".")[:2])


def _places(folder: Path) -> dict[str, Path]:
    """Name of each weight -> its file.

    Raises:
        ImportRefusedError: there is no weight, or a file of the list is absent or damaged.
    """
    listed, single = folder / SHARDS, folder / WEIGHTS
    try:
        names = (
            sorted(set(json.loads(listed.read_bytes())["weight_map"].values()))
            if listed.exists()
            else [WEIGHTS]
        )
        found: dict[str, Path] = {}
        for name in names:
            if Path(name).name != name:
                raise ImportRefusedError(f"{listed}: {name!r} is no name of a file", "bring the model again")
            with safe_open(folder / name, framework="pt") as file:
                found |= dict.fromkeys(file.keys(), folder / name)
    except ImportRefusedError:
        raise
    except Exception as error:  # safetensors has errors of its own
        raise ImportRefusedError(
            f"{listed if listed.exists() else single}: {error}", "bring the model again"
        ) from error
    return found


def _check_names(folder: Path, found: Mapping[str, Any], wanted: set[str], model: ModelConfig) -> None:
    spare = {"lm_head.weight"} if model.tied_embeddings else set()
    lacking, beyond = sorted(wanted - found.keys()), sorted(found.keys() - wanted - spare)
    if lacking or beyond:
        what = [f"no weight {name}" for name in lacking[:4]] + [
            f"{name} is none of ours" for name in beyond[:4]
        ]
        raise ImportRefusedError(
            f"{folder}: {'; '.join(what)}"
            + f" (and {len(lacking + beyond) - len(what)} more)" * (len(lacking + beyond) > len(what)),
            "its config.json is of another model, or files are missing",
        )


def _read(places: Mapping[str, Path], names: list[str], name: str, shape: tuple[int, ...]) -> Tensor:
    parts = []
    for theirs in names:
        with safe_open(places[theirs], framework="pt") as file:
            parts.append(file.get_tensor(theirs).float())
        if not parts[-1].isfinite().all():
            raise ImportRefusedError(
                f"{places[theirs]}: {theirs} has numbers that are not finite",
                "import the checkpoint before it",
            )
    whole = parts[0] if len(parts) == 1 else torch.stack(parts)
    if tuple(whole.shape) != shape:
        raise ImportRefusedError(
            f"{places[names[0]]}: {names[0]} makes a {name} of {list(whole.shape)}, "
            f"config.json of {list(shape)}",
            "the config.json is of another model",
        )
    return whole.contiguous()
