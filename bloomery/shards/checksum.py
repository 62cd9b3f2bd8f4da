"""CRC32C of data in parts: crc(a + b) = shifted(crc(a), len(b)) ^ crc(b).

A CRC is a remainder of polynomials over GF(2), so bytes behind multiply it by x^8 each (zlib, crc32_combine).
"""

from __future__ import annotations

from functools import lru_cache

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, x^32 left out; the highest power is the lowest bit."""
ONE = 1 << 31


def shifted(crc: int, size: int) -> int:
    """What the CRC of some data adds to that of the same data with `size` bytes behind it."""
    return _times(crc, _power(8 * size)) if size else crc


@lru_cache(maxsize=4096)
def _power(exponent: int) -> int:
    """x^exponent."""
    result, square = ONE, ONE >> 1
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square, exponent = _times(square, square), exponent >> 1
    return result


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)
    return product
