"""CRCs of parts make that of the whole."""

from __future__ import annotations

from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bloomery.shards.checksum import shifted


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_parts_make_the_whole(parts):
    found = 0
    for number, part in enumerate(parts):
        found ^= shifted(crc32c(part), sum(map(len, parts[number + 1 :])))
    assert found == crc32c(b"".join(parts))
