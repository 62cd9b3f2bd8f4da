"""What every config class is made of: frozen, unknown keys refused, identity told apart from execution.

A field bears *identity* unless it is declared with `execution(...)`: only identity-bearing fields enter a
stage's key.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Config(BaseModel):
    """Base of every section of a run's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`true` in YAML is no 1."""
        if isinstance(value, bool) and info.field_name:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and kinds & {int, float}:
                raise ValueError(f"must be a {'whole ' * (float not in kinds)}number")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    inner = get_args(annotation)
    return {annotation}.union(*map(_kinds, inner)) if inner else {annotation}


def execution(default: Any = ..., **constraints: Any) -> Any:
    """A field that only says where or how a stage runs: it never enters a key."""
    return Field(default, json_schema_extra={"execution": True}, **constraints)


def is_execution(config: type[BaseModel], field: str) -> bool:
    """Whether `field` of `config` is execution-only."""
    extra = config.model_fields[field].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("execution"))


def identity(config: BaseModel) -> dict[str, Any]:
    """The identity-bearing fields of `config` as JSON values, defaults filled in."""
    dumped = config.model_dump(mode="json")
    return {
        name: _identity_value(getattr(config, name), dumped[name])
        for name in type(config).model_fields
        if not is_execution(type(config), name)
    }


def _identity_value(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel):
        return identity(value)
    if isinstance(value, tuple | list):
        return [_identity_value(v, d) for v, d in zip(value, dumped, strict=True)]
    if isinstance(value, dict):
        return {
            str(k): _identity_value(v, d) for (k, v), d in zip(value.items(), dumped.values(), strict=True)
        }
    return dumped
