"""Schema of every knob: typed, validated, frozen."""

from bloomery.config.base import Config, execution, identity
from bloomery.config.run import ConfigError, Execution, RunConfig, load, parse

__all__ = ["Config", "ConfigError", "Execution", "RunConfig", "execution", "identity", "load", "parse"]
