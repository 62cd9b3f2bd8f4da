"""Run by the peers' interpreter: reads shards and exports by the peers' own readers.

    python peers_read.py DATASET EXPORTS EOS

DATASET is a folder of shards, EXPORTS has its exports below npy/, ds/ and mds/. Prints, as JSON,
{reader: {"split/source": documents}}, each document a list of ids; of some readers windows or whole files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

WINDOW = 16
DTYPES = {"<u2": np.uint16, "<i4": np.int32}


def main(dataset: Path, exports: Path, eos: int) -> None:
    """Reads by each reader."""
    width = DTYPES[json.loads((dataset / "manifest.json").read_text())["policy"]["dtype"]]
    readers: dict[str, tuple[Path, Callable[[Path], Iterator[list[int]]]]] = {
        "megatron": (dataset, megatron),
        "memmap": (dataset, lambda folder: memmap(folder, width)),
        "olmo_documents": (exports / "npy", lambda folder: olmo_documents(folder, width, eos)),
        "olmo_windows": (exports / "npy", lambda folder: olmo_windows(folder, width, eos)),
        "olmo_bin": (dataset, lambda folder: olmo_windows(folder, width, eos, "*.bin")),
        "datatrove": (exports / "ds", lambda folder: datatrove(folder, width)),
        "datatrove_positions": (exports / "ds", lambda folder: datatrove_positions(folder, width)),
        "streaming": (exports / "mds", streaming),
    }
    found = {
        name: {f"{stream.parent.name}/{stream.name}": list(read(stream)) for stream in streams(root)}
        for name, (root, read) in readers.items()
    }
    print(json.dumps(found))


def streams(root: Path) -> list[Path]:
    """Folders of streams."""
    return sorted(path for split in ("train", "held_out") for path in (root / split).iterdir())


def megatron(folder: Path) -> Iterator[list[int]]:
    """Documents of megatron-core's IndexedDataset."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    for path in sorted(folder.glob("*.idx")):
        opened = IndexedDataset(str(path.with_suffix("")))
        assert opened.document_indices.tolist() == list(range(len(opened) + 1))
        for number in range(len(opened)):
            yield opened[number].tolist()


def memmap(folder: Path, width: type) -> Iterator[list[int]]:
    """Every id, mapped as torchtitan's and nanoGPT's like do."""
    for path in sorted(folder.glob("*.bin")):
        yield np.memmap(path, dtype=width, mode="r").tolist()


def olmo_documents(folder: Path, width: type, eos: int) -> Iterator[list[int]]:
    """Documents that OLMo-core cuts at the separator."""
    from olmo_core.data.utils import iter_document_indices, load_array_slice

    dtype = unsigned(width)
    for path in sorted(folder.glob("*.npy")):
        for start, stop in iter_document_indices(path, eos_token_id=eos, dtype=dtype):
            yield load_array_slice(path, start, stop, dtype).tolist()


def olmo_windows(folder: Path, width: type, eos: int, pattern: str = "*.npy") -> Iterator[list[int]]:
    """Instances of OLMo-core's NumpyFSLDataset."""
    from olmo_core.data import NumpyFSLDataset

    paths = sorted(folder.glob(pattern))
    opened = NumpyFSLDataset(
        *paths,
        sequence_length=WINDOW,
        pad_token_id=eos,
        eos_token_id=eos,
        vocab_size=int(np.iinfo(width).max),
        dtype=unsigned(width),
    )
    opened.prepare()
    for number in range(len(opened)):
        yield opened[number]["input_ids"].tolist()


def unsigned(width: type) -> type:
    """The dtype by which OLMo-core reads ids of this width."""
    return np.uint16 if width is np.uint16 else np.uint32


def datatrove(folder: Path, width: type) -> Iterator[list[int]]:
    """Every id, through datatrove's windows of one token."""
    from datatrove.utils.dataset import DatatroveFolderDataset

    opened = DatatroveFolderDataset(str(folder), 0, "*.ds", token_size=np.dtype(width).itemsize)
    yield [int(opened[number]["input_ids"][0]) for number in range(len(opened))]


def datatrove_positions(folder: Path, width: type) -> Iterator[list[int]]:
    """Positions in documents, which datatrove takes from the index."""
    from datatrove.utils.dataset import DatatroveFileDataset

    for path in sorted(folder.glob("*.ds")):
        opened = DatatroveFileDataset(
            str(path), WINDOW - 1, token_size=np.dtype(width).itemsize, return_positions=True
        )
        for number in range(len(opened)):
            yield opened[number]["positions"].tolist()


def streaming(folder: Path) -> Iterator[list[int]]:
    """Samples of mosaicml-streaming."""
    from streaming import StreamingDataset

    opened = StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    for number in range(len(opened)):
        yield opened[number]["tokens"].tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
