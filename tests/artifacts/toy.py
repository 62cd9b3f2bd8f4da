"""A stage of several outputs without an engine, for the tests of the engine of stages itself."""

import hashlib
import os
import time
from pathlib import Path

from pydantic import Field

from bloomery.artifacts.canonical import canonical
from bloomery.artifacts.manifest import Output
from bloomery.artifacts.stage import Stage
from bloomery.config.base import Config, execution


class ToyConfig(Config):
    """Config of the toy."""

    size: int = Field(3, ge=1)
    seed: int = 1
    place: str = execution("/somewhere")


class PolicyConfig(Config):
    """Policy of the toy's gate."""

    most: int = 10


def make(context):
    """Three outputs, written bit by bit so that a kill finds it in the middle."""
    outputs = {}
    for name in ("left", "right", "index"):
        data = hashlib.sha256(f"{context.config.seed}/{name}".encode()).digest() * context.config.size
        half = len(data) // 2
        part = context.scratch / name
        with open(part, "wb") as file:
            file.write(data[:half])
            file.flush()
            time.sleep(float(os.environ.get("TOY_PAUSE", "0")))
            file.write(data[half:])
        context.store.upload(part, context.place(name))
        outputs[name] = context.artifact(
            name, Output(digest=hashlib.sha256(data).hexdigest(), bytes=len(data))
        )
    with open(Path(os.environ.get("TOY_RUNS", "/dev/null")), "a") as runs:
        runs.write(f"{context.fence}\n")
    return outputs


def judge(context):
    """A gate on the toy's left output."""
    size = context.inputs["left"].output.bytes
    failed = [] if size <= context.config.most else [f"left has {size} bytes, allowed {context.config.most}"]
    facts = {"passed": not failed, "failed": failed, "warnings": []}
    return {"verdict": context.blob("verdict.json", canonical(facts), facts=facts)}


def after(context):
    """A stage behind the gate."""
    return {"sum": context.blob("sum", hashlib.sha256(context.inputs["left"].read()).digest())}


MAKE = Stage("make", 1, ToyConfig, body="tests.artifacts.toy:make")
GATE = Stage("gate", 1, PolicyConfig, {"left": "make.left"}, body="tests.artifacts.toy:judge")
AFTER = Stage("after", 1, ToyConfig, {"left": "make.left"}, gates=("gate",), body="tests.artifacts.toy:after")
