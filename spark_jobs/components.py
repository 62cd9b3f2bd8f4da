"""Connected components of a graph of document ids, by union-find over partial forests.

Each partition reduces its edges to a forest of stars; forests are edges again, so that the union of all is
reduced once more in one task. Nothing passes the driver; memory grows with the near duplicates, not with
the corpus. The least id names a component, so the answer does not depend on how edges are spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

SCHEMA = "id string, survivor string"


def forest(edges: Iterable[tuple[str, str]]) -> dict[str, str]:
    """{id: least id of its component} for every id that is not the least of its own."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        top = node
        while (up := parent.get(top, top)) != top:
            top = up
        while (up := parent.get(node, node)) != top and node != top:
            parent[node] = top
            node = up
        return top

    for one, other in edges:
        low, high = sorted((root(one), root(other)))
        if low != high:
            parent[high] = low
    return {node: root(node) for node in sorted(parent)}


def components(edges: Any) -> Any:
    """DataFrame (id, survivor) of a DataFrame of two string columns, the edges."""
    return edges.mapInArrow(_reduce, SCHEMA).repartition(1).mapInArrow(_reduce, SCHEMA)


def _reduce(batches: Iterator[Any]) -> Iterator[Any]:
    from spark_jobs.tables import record_batch

    pairs = (
        pair
        for batch in batches
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    found = list(forest(pairs).items())
    for start in range(0, len(found), 1 << 16):
        yield record_batch(list(found[start : start + (1 << 16)]), SCHEMA)
