"""Quality classifier that the user brings: a fastText file, or linear weights in safetensors.

    weights.safetensors    weights [2 ** k] float32, bias [1] float32; metadata {"ngrams": "2"}

The linear one reads lower-case white-space words. An n-gram's bucket is the top k bits of its hash times
MIX, the hash being rolled over its words as repeated n-grams' are. The score is sigmoid(bias + the mean
weight of all 1..n-grams); `buckets` is what a training script calls to agree with it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from bloomery.config.cleaning import Classifier
from spark_jobs.cleaning.ngrams import WORD_BASE
from spark_jobs.cleaning.pinned import PinnedFileError, read_pinned
from spark_jobs.cleaning.words import white_space

MIX = np.uint64(0xFF51AFD7ED558CCD)


def score(text: str, classifier: Classifier) -> float:
    """Probability that a text is good; nan without words.

    Raises:
        PinnedFileError: the file is not the one of the config, or no classifier.
    """
    return _load(classifier)(text)


def buckets(text: str, ngrams: int, bits: int) -> npt.NDArray[np.int64]:
    """Bucket of every 1..n-gram of a text, among 2 ** bits."""
    hashes = white_space().words(text.lower()).hashes
    found, rolled = [], hashes
    for size in range(1, ngrams + 1):
        if size > 1:
            rolled = rolled[:-1] * WORD_BASE + hashes[size - 1 :]
        found.append((rolled * MIX) >> np.uint64(64 - bits))
    return np.concatenate(found).astype(np.int64)


@cache
def _load(classifier: Classifier) -> Callable[[str], float]:
    if classifier.format == "fasttext":
        return _fasttext(classifier)
    data = read_pinned(classifier.file)
    try:
        weights, bias, ngrams = _linear(data)
    except (KeyError, ValueError, SafetensorError) as error:
        raise PinnedFileError(
            f"{classifier.file.path}: no linear classifier: {error}",
            "save weights [2 ** k] and bias [1], float32, with metadata ngrams, as safetensors",
        ) from error

    def linear(text: str) -> float:
        found = weights[buckets(text, ngrams, len(weights).bit_length() - 1)]
        return 1 / (1 + math.exp(-(bias + float(found.mean())))) if len(found) else math.nan

    return linear


def _linear(data: bytes) -> tuple[npt.NDArray[np.float64], float, int]:
    tensors = load(data)
    (size,) = struct.unpack_from("<Q", data)
    ngrams = int(json.loads(data[8 : 8 + size])["__metadata__"]["ngrams"])
    weights = tensors["weights"].astype(np.float64)
    if weights.ndim != 1 or len(weights) & (len(weights) - 1) or not 1 <= ngrams <= 8:
        raise ValueError(f"weights of shape {weights.shape} and ngrams {ngrams}")
    return weights, float(tensors["bias"][0]), ngrams


def _fasttext(classifier: Classifier) -> Callable[[str], float]:
    import fasttext

    read_pinned(classifier.file)
    model = fasttext.load_model(classifier.file.path)
    wanted = f"__label__{classifier.label}"

    def predict(text: str) -> float:
        labels, scores = model.predict(" ".join(text.split()), k=-1)
        return min(float(dict(zip(labels, scores, strict=True)).get(wanted, 0.0)), 1.0)

    return predict
