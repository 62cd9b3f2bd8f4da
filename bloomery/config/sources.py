"""Where documents come from, and how files become records."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from bloomery.config.base import Config, execution

Format = Literal[
    "auto", "warc", "jsonl", "parquet", "delta", "csv", "tsv", "text", "markdown", "html", "python"
]


class Source(Config):
    """One place that documents come from."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="name of the source in every table and report"
    )
    uri: str = execution(
        description="builtin://python, or a folder, file or glob: a path, file:// or s3://bucket/prefix"
    )
    format: Format = Field(
        "auto", description="format of the files; auto goes by the suffix; a Delta table must be named as one"
    )
    text_field: str = Field("text", description="field that holds the text: of JSONL, CSV, Parquet, Delta")
    id_field: str = Field("id", description="field that holds the publisher's id, when present")
    url_field: str = Field("url", description="field that holds the URL, when present")
    date_field: str = Field("date", description="field that holds the date, when present")
    licence_field: str = Field("licence", description="field that holds the licence, when present")

    @field_validator("uri")
    @classmethod
    def _known_scheme(cls, uri: str) -> str:
        scheme = uri.split("://", 1)[0] if "://" in uri else "file"
        if scheme not in {"builtin", "file", "s3"}:
            raise ValueError(
                f"scheme {scheme!r} is not known; allowed: a path, file://, s3://, builtin://python"
            )
        if scheme == "builtin" and uri != "builtin://python":
            raise ValueError(f"{uri!r} is not a built-in source; allowed: builtin://python")
        return uri


class EvalSet(Config):
    """Items that no training text may hold: JSON lines, as lm-eval keeps them."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="name of the set in every report")
    uri: str = execution(description="file, folder or glob of .jsonl or .jsonl.gz: a path, or s3://")
    question: tuple[str, ...] = Field(
        ("question",), min_length=1, description="fields that make up the question, joined by a line end"
    )
    answer: str | None = Field("answer", description="field of the answer; none where a set has no answers")
    choices: str | None = Field(
        None, description="field of the list that an integer answer counts in, from 0"
    )


class SnapshotConfig(Config):
    """What is listed when a snapshot is taken."""

    sources: tuple[Source, ...] = Field(min_length=1, description="where documents come from")
    eval_sets: tuple[EvalSet, ...] = Field((), description="eval sets that are kept out of the corpus")

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        for what, found in (("source", self.sources), ("eval set", self.eval_sets)):
            names = [item.name for item in found]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} names must differ; used twice: {', '.join(twice)}")
        return self


class IngestConfig(Config):
    """How files become records."""

    max_record_bytes: int = Field(
        128 << 20, gt=0, description="a longer record (decoded bytes) is quarantined"
    )
    max_file_bytes: int = Field(
        64 << 30, gt=0, description="a file that decodes to more is cut there, the rest quarantined"
    )
