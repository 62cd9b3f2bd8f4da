"""Eval sets: the items that no training text may hold, as lm-eval and others keep them: JSON lines.

{"question": "Who ...?", "choices": ["a", "b"], "answer": 1}   ->   Item("name", 0, "Who ...?", "b")
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from bloomery.config.sources import EvalSet, Source
from bloomery.errors import BloomeryError
from spark_jobs.contamination import Item
from spark_jobs.readers.compression import read_whole
from spark_jobs.readers.listing import list_source


class EvalSetError(BloomeryError):
    """A line of an eval set that is no item."""


def read_eval_sets(sets: Sequence[EvalSet]) -> list[Item]:
    """Every item of every set, in the order of sets, files and lines.

    Raises:
        EvalSetError: a line that is not JSON, or lacks a field.
        ReadError: a file that cannot be read or is broken.
    """
    return [item for found in sets for item in _read(found)]


def _read(found: EvalSet) -> Iterator[Item]:
    number = 0
    for file in list_source(Source(name=found.name, uri=found.uri, format="jsonl")):
        for position, line in enumerate(read_whole(file).splitlines(), 1):
            if line.strip():
                yield _item(found, number, line, f"{file.uri}, line {position}")
                number += 1


def _item(found: EvalSet, number: int, line: bytes, where: str) -> Item:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise EvalSetError(f"eval set {found.name}: {where}: not JSON: {error}", "mend the line") from error
    question = [_field(found, row, name, where) for name in found.question]
    answer = _field(found, row, found.answer, where) if found.answer else ""
    if found.choices and isinstance(answer, int):
        choices = _field(found, row, found.choices, where)
        if not isinstance(choices, list) or not 0 <= answer < len(choices):
            raise EvalSetError(
                f"eval set {found.name}: {where}: answer {answer} is not one of {found.choices}",
                "mend the line",
            )
        answer = choices[answer]
    return Item(found.name, number, "\n".join(map(_text, question)), _text(answer))


def _field(found: EvalSet, row: Any, name: str, where: str) -> Any:
    if not isinstance(row, dict) or name not in row:
        known = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise EvalSetError(
            f"eval set {found.name}: {where}: no field {name!r}; found {known}",
            "name the set's fields in corpus.snapshot.eval_sets (question, answer, choices)",
        )
    return row[name]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
