"""The key of a document: what spreads documents over shards, orders them, and finds them again.

    id: 32 hex digits -> 16 bytes;  key = xxhash64(seed, id) ^ 2^63

`xxhash64(seed, id)` is Spark's function of that name over a bigint and a string: XXH64 of the seed's 8
bytes with seed 42, then XXH64 of the id's 32 digits with the first hash as its seed. It is signed there: the
flipped sign bit makes the unsigned order of keys Spark's order. Algorithm: github.com/Cyan4973/xxHash,
doc/xxhash_spec.md, "XXH64".
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bloomery.shards.format import ShardError

SIGN = np.uint64(1 << 63)
"""What makes Spark's signed hash a key."""
ID_BYTES = 16

Ids = npt.NDArray[np.uint8]
"""Document ids: [documents, 16]."""
Keys = npt.NDArray[np.uint64]
Words = TypeVar("Words", np.uint64, npt.NDArray[np.uint64])

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_DIGITS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")
"""The two hex digits of each byte."""


def parse_ids(ids: list[str] | tuple[str, ...]) -> Ids:
    """Ids as bytes: [documents, 16].

    Raises:
        ShardError: an id that is not 32 lowercase hex digits.
    """
    try:
        parsed = bytes.fromhex("".join(ids))
    except (TypeError, ValueError):
        parsed = b""
    if len(parsed) != ID_BYTES * len(ids) or parsed.hex() != "".join(ids) or set(map(len, ids)) - {32}:
        bad = next((name for name in ids if not _is_id(name)), ids)
        raise ShardError(f"{bad!r} is not a document id", "an id is 32 lowercase hexadecimal digits")
    return np.frombuffer(parsed, np.uint8).reshape(-1, ID_BYTES)


def _is_id(name: str) -> bool:
    return isinstance(name, str) and len(name) == 2 * ID_BYTES and set(name) <= set("0123456789abcdef")


def keys(ids: Ids, seed: int) -> Keys:
    """Keys of documents: [documents].

    Args:
        ids: [documents, 16].
        seed: of the dataset, 0 .. 2^63 - 1.
    """
    words = _DIGITS[ids].view("<u8").reshape(-1, 4)
    with np.errstate(over="ignore"):
        return _of_digits(words, _of_seed(np.uint64(seed))) ^ SIGN


def _of_seed(seed: np.uint64) -> np.uint64:
    """XXH64 of 8 bytes with seed 42."""
    found = np.uint64(42) + _P5 + np.uint64(8)
    found = _rotate(found ^ _round(np.uint64(0), seed), 27) * _P1 + _P4
    return _avalanche(found)


def _of_digits(words: Keys, seed: np.uint64) -> Keys:
    """XXH64 of 32 bytes, given as four words: one stripe, no tail."""
    lanes = [
        _round(start, words[:, number])
        for number, start in enumerate((seed + _P1 + _P2, seed + _P2, seed, seed - _P1))
    ]
    one, two, three, four = lanes
    found = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
    for lane in lanes:
        found = (found ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return _avalanche(found + np.uint64(32))


def _round(lane: np.uint64, word: Words) -> Words:
    return _rotate(lane + word * _P2, 31) * _P1


def _rotate(word: Words, by: int) -> Words:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


def _avalanche(word: Words) -> Words:
    word = (word ^ (word >> np.uint64(33))) * _P2
    word = (word ^ (word >> np.uint64(29))) * _P3
    return word ^ (word >> np.uint64(32))
