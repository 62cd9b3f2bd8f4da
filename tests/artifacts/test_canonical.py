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
from bloomery.artifacts.digests import TableDigest, grouped_digests, tree_digest
from tests.artifacts.encoding import encode, rows_digest

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


TYPES = st.recursive(
    st.sampled_from(
        [
            *(pa.null(), pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
            *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        ]
    ),
    lambda inner: (
        inner.map(pa.list_)
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{number}", kind) for number, kind in enumerate(kinds)])
        )
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=4,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def values(kind):
    """Values of a pyarrow type, None among them."""
    types = pa.types
    if types.is_null(kind):
        return st.none()
    if types.is_list(kind):
        some = st.lists(values(kind.value_type), max_size=3)
    elif types.is_map(kind):
        some = st.dictionaries(TEXT, values(kind.item_type), max_size=3).map(lambda map_: list(map_.items()))
    elif types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif types.is_integer(kind):
        some = st.integers(-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1)
    elif types.is_floating(kind):
        some = st.floats(width=kind.bit_width)
    elif types.is_timestamp(kind):
        some = st.datetimes(timezones=st.just(datetime.UTC) if kind.tz else st.none())
    else:
        some = {
            pa.bool_(): st.booleans(),
            pa.string(): TEXT,
            pa.binary(): st.binary(max_size=4),
            pa.date32(): st.dates(),
        }[kind]
    return st.none() | some


@given(st.data())
def test_a_batch_of_any_types_is_encoded_as_its_values_are(data):
    """Whole, and from the middle of a batch, where arrays begin at an offset."""
    kinds = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    rows = data.draw(st.lists(st.tuples(*map(values, kinds)), min_size=1, max_size=5))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(kinds))])
    first = data.draw(st.integers(0, len(rows) - 1))
    for part in (batch, batch.slice(first), batch.slice(0, first + 1)):
        expected = rows_digest(zip(*(column.to_pylist() for column in part.columns), strict=True))
        assert grouped_digests(part, [])[()][0] == expected


def test_a_type_without_an_encoding_is_refused():
    batch = pa.table({"price": pa.array([1], pa.decimal128(5, 2))})
    with pytest.raises(TypeError, match=r"no canonical encoding for decimal128\(5, 2\)"):
        grouped_digests(batch, [])


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
