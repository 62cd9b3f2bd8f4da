"""Canonical JSON and content digests are frozen: a change here is a change of every key in every store."""

import datetime
import json
from functools import reduce
from operator import add
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.artifacts.canonical import canonical, digest
from bloomery.artifacts.digests import TableDigest, encode, grouped_digests, rows_digest, tree_digest

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("case", VECTORS["canonical"], ids=lambda case: case["name"])
def test_canonical_json_is_frozen(case):
    assert canonical(case["value"]).decode() == case["canonical"]
    assert digest(case["value"]) == case["sha256"]


ROWS = [
    ("a", 1, 0.5, True, None, b"\x00", datetime.date(2026, 1, 2), [1, 2], {"x": 1, "y": "z"}),
    ("é", -(1 << 62), -0.0, False, "n", b"", datetime.date(1969, 12, 31), [], {"x": 0, "y": ""}),
    ("a", 1, 0.5, True, None, b"\x00", datetime.date(2026, 1, 2), [1, 2], {"x": 1, "y": "z"}),
]
SCHEMA = [(name, "any") for name in "abcdefghi"]


def test_table_digest_is_frozen():
    assert rows_digest(ROWS).hexdigest(SCHEMA) == VECTORS["table"]
    assert tree_digest({"b": "2", "a": "1"}) == VECTORS["tree"] == tree_digest({"a": "1", "b": "2"})


@pytest.mark.parametrize("group", ["", "a", "b", "ab", "fb"])
def test_groups_of_a_batch_add_up_to_its_rows(group):
    """By any columns, and by none, where there is one group."""
    columns = list(zip(*ROWS, strict=True))
    batch = pa.table({name: list(column) for name, column in zip("abcdefghi", columns, strict=True)})
    found = grouped_digests(batch, list(group))
    assert reduce(add, (part for part, _ in found.values())) == rows_digest(ROWS)
    assert sorted(number for _, numbers in found.values() for number in numbers) == list(range(len(ROWS)))
    for key, (part, numbers) in found.items():
        assert part == rows_digest([ROWS[number] for number in numbers]) and len(key) == len(group)


@given(st.lists(st.tuples(st.text(), st.none() | st.integers()), max_size=12), st.data())
def test_table_digest_depends_on_no_order_and_no_partition(rows, data):
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = rows_digest(shuffled[:cut]) + rows_digest(shuffled[cut:]) + TableDigest()
    assert parts == rows_digest(rows)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=6), st.data())
def test_table_digest_sees_every_change_of_a_row(rows, data):
    index = data.draw(st.integers(0, len(rows) - 1))
    changed = list(rows)
    changed[index] = (rows[index][0] + rows[index][1], "")  # same bytes, other cells
    if changed[index] != rows[index]:
        assert rows_digest(changed) != rows_digest(rows)
    assert rows_digest([*rows, rows[index]]) != rows_digest(rows)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.lists(st.integers() | st.text(), max_size=3)
)


@given(VALUES, VALUES)
def test_encoding_is_injective(one, other):
    same = type(one) is type(other) and one == other
    assert (encode(one) == encode(other)) is same


@given(st.dictionaries(st.text(), JSON, max_size=6), st.data())
def test_canonical_json_depends_on_no_dict_order(value, data):
    shuffled = dict(data.draw(st.permutations(list(value.items()))))
    assert canonical(shuffled) == canonical(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": object()}, {"a": {1, 2}}])
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises(ValueError, match="not canonical JSON"):
        canonical(value)
