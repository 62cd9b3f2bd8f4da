"""Connected components of a graph by union-find over partial forests, in rounds (after Kiveris et al. 2014,
"Connected Components in MapReduce and Beyond": each node joins all it sees to the least of them).

    round: every edge goes to the partition of either end; a partition turns its edges into stars; stars are
    edges

A round keeps what is connected; when it changes no edge, every node points straight at the least node of its
component. No task sees the whole graph, nothing passes the driver, and neither the partitions nor their
number change the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from bloomery.artifacts.stage import Context
from spark_jobs.engine import functions
from spark_jobs.parts import union
from spark_jobs.tables import record_batch, scratch_table

SCHEMA = "node string, least string"


def forest(edges: Iterable[tuple[str, str]]) -> dict[str, str]:
    """{node: least node of its component} for every node that is not the least of its own."""
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


def components(spark: Any, context: Context, edges: Any, tasks: int) -> Any:
    """DataFrame (node, least) of a DataFrame of two string columns, the edges; least nodes are left out.

    `tasks` share the work of a round; what one task can hold takes one round.
    """
    F = functions()  # noqa: N806
    stars, before = edges.toDF("node", "least").repartition(tasks).mapInArrow(_stars, SCHEMA), None
    for number in count():
        stars = scratch_table(spark, context, f"stars-{number}", stars.distinct() if tasks > 1 else stars)
        state = (
            stars.agg(F.count("*"), F.expr("bit_xor(xxhash64(node, least))")).first() if tasks > 1 else None
        )
        if state == before:
            return stars
        before = state
        ends = [stars.select(F.col(end).alias("end"), "node", "least") for end in ("node", "least")]
        stars = union(ends).repartition(tasks, "end").select("node", "least").mapInArrow(_stars, SCHEMA)
    raise AssertionError("unreachable")


def _stars(batches: Iterator[Any]) -> Iterator[Any]:
    pairs = (
        pair
        for batch in batches
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    found = list(forest(pairs).items())
    for start in range(0, len(found), 1 << 16):
        yield record_batch(found[start : start + (1 << 16)], SCHEMA)
