"""Canonical JSON (RFC 8785) and digests over it; frozen by tests/artifacts/vectors.json.

Integers beyond 2^53 become strings, since JSON numbers are doubles (RFC 8785, section 3.2.2.3); NaN and
infinity are refused.
"""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

EXACT = (1 << 53) - 1


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of `value`, made of dicts with string keys, lists, strings, numbers, booleans and None.

    Raises:
        ValueError: NaN, infinity, or a type that JSON does not have.
    """
    try:
        return rfc8785.dumps(_plain(value))
    except rfc8785.CanonicalizationError as error:
        raise ValueError(f"not canonical JSON: {error}") from error


def digest(value: Any) -> str:
    """sha256 of the canonical JSON of `value`, in hex."""
    return sha256(canonical(value))


def sha256(data: bytes) -> str:
    """sha256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        return value if -EXACT <= value <= EXACT else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"not canonical JSON: keys must be strings, found {list(value)!r}")
        return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"not canonical JSON: {type(value).__name__} {value!r}")
