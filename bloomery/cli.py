"""The command line: a thin client of the services, Airflow's REST API and the store. Never a second
orchestrator."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bloomery.config.settings import settings
from bloomery.errors import BloomeryError

app = typer.Typer(
    help="Bloomery: raw corpora to a released foundation model. Settings: BLOOMERY_* in the environment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, highlight=False, soft_wrap=True)
_debug = False

GIVE_UP = 3
"""Starts of an essential service after which `up` stops waiting for it."""

Reference = Annotated[
    str, typer.Argument(help="a ref, as models/demo/champion; or a digest, or its first digits")
]

Run = Annotated[
    str,
    typer.Argument(help="name of a training run (of several, the last one begun), or its key's first digits"),
]


@app.callback()
def _options(debug: Annotated[bool, typer.Option(help="show the traceback of an error")] = False) -> None:
    global _debug  # noqa: PLW0603  the one option of the process
    _debug = debug


def main() -> None:
    """Runs the command line; an error has no traceback unless --debug."""
    try:
        app()
    except KeyboardInterrupt:
        errors.print("\nThe runs go on in Airflow; stop one there, or follow again with the same command.")
        sys.exit(130)
    except BloomeryError as error:
        if _debug:
            raise
        errors.print(f"[red]{type(error).__name__}[/]: ", end="")
        errors.print(str(error), markup=False)
        sys.exit(1)


def example(text: str) -> dict[str, Any]:
    """A command's help ends with an example."""
    return {"epilog": f"Example:  [bold]{text}[/]"}


# --- services -----------------------------------------------------------------------------------


@app.command(**example("bloomery up"))
def up(timeout: Annotated[float, typer.Option(help="seconds to wait until all are ready")] = 300) -> None:
    """Start the services of this profile: Airflow, the Spark engine, MLflow. Running already is fine.

    Returns when a run can start: MLflow and the triggerer may still be on their way.
    """
    from bloomery.cluster import supervisor

    config = settings()
    supervisor.start(config)
    began, said = time.monotonic(), set()
    with console.status("starting") as status:
        while True:
            states = supervisor.status(config)
            for name, state in states.items():
                if state.state in {"ready", "done"} and name not in said:
                    said.add(name)
                    console.print(f"  [green]✓[/] {name:<22} {state.seconds:5.1f} s")
            waiting = [n for n, s in states.items() if s.essential and s.state not in {"ready", "done"}]
            if states and not waiting:
                break
            status.update(f"starting {', '.join(waiting)}")
            failing = [name for name in waiting if states[name].starts > GIVE_UP]
            if failing or not supervisor.running(config) or time.monotonic() - began > timeout:
                name = (failing or waiting or ["supervisor"])[0]
                raise BloomeryError(
                    f"{name} does not start: {_last_line(config.home / 'logs' / f'{name}.log')}",
                    f"read {config.home}/logs/{name}.log; `bloomery stop` ends what did start",
                )
            time.sleep(0.25)
    _places()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing in its log")


def _places() -> None:
    from bloomery.cluster.credentials import credentials

    config, login = settings(), credentials(settings().home)
    console.print(f"Airflow  {config.airflow_url}   login {login['user']} / {login['password']}")
    console.print(f"MLflow   {config.mlflow_url}")
    console.print(f"Spark    http://127.0.0.1:{config.spark_ui_port}")


@app.command(**example("bloomery stop"))
def stop() -> None:
    """Stop what `bloomery up` started, and nothing else."""
    from bloomery.cluster import supervisor

    console.print("stopped" if supervisor.stop(settings()) else "nothing runs")


@app.command(**example("bloomery doctor"))
def doctor() -> None:
    """Say what is missing or unreachable, each with its remedy."""
    from bloomery.doctor import examine

    findings = list(examine(settings()))
    for finding in findings:
        console.print(f"  {'[green]✓[/]' if finding.well else '[red]✗[/]'} {finding.what}")
        if not finding.well:
            console.print(f"      remedy: {finding.remedy}", markup=False)
    if not all(finding.well for finding in findings):
        raise typer.Exit(1)


# --- runs ---------------------------------------------------------------------------------------


@app.command(**example("bloomery run configs/demo.yaml --until pretrain"))
def run(
    config: Annotated[str, typer.Argument(help="YAML file of the run")],
    until: Annotated[str, typer.Option(help="last DAG: corpus, pretrain, evaluate or release")] = "release",
) -> None:
    """Trigger the DAGs, follow them with progress, and print the result. A failed task ends it, exit 1."""
    from bloomery.airflow.follow import CHAIN, Follower
    from bloomery.airflow.pools import client
    from bloomery.airflow.result import show_result
    from bloomery.airflow.work import read_config, resolve_config

    if until not in CHAIN:
        raise BloomeryError(f"--until {until!r} is not a DAG", f"one of {', '.join(CHAIN)}")
    digest = resolve_config(config)
    until = read_config(digest).last(until)
    airflow = client()
    airflow.await_dags(CHAIN)
    follower = Follower(airflow, console, str(settings().home / "airflow" / "logs"), digest)
    began = time.monotonic()
    follower.follow("corpus", airflow.trigger("corpus", {"config": digest, "until": until}), until)
    took = time.monotonic() - began
    everything = "every stage was done already" if not follower.made else f"{follower.made} stages made"
    console.print(f"\n{everything}, {follower.hits} found done, in {took:.0f} s\n")
    show_result(digest, until, console)
    _places()


@app.command(**example("bloomery config configs/demo.yaml"))
def config(
    config: Annotated[str, typer.Argument(help="YAML file of the run")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Print a resolved config: each field with its meaning, and whether it bears identity."""
    from bloomery.config.run import knobs, load

    resolved = load(config)
    if as_json:
        print(resolved.model_dump_json(indent=2))
        return
    table = Table("field", "value", "identity", "meaning", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for knob in knobs(resolved):
        value, meaning = escape(json.dumps(knob.value)), escape(knob.meaning)
        table.add_row(knob.path, value, "yes" if knob.identity else "no", meaning)
    console.print(table, width=max(console.width, 150))


@app.command(**example("bloomery model 8b"))
def model(preset: Annotated[str, typer.Argument(help="a preset's name; all if not given")] = "") -> None:
    """Print what a preset costs: parameters, FLOPs, memory. `train: {model: 8b}` in a config takes it.

    With the published vocabulary; a run's own is its tokenizer's.
    """
    from bloomery.config.model import PRESETS
    from training.size import describe

    if preset and preset not in PRESETS:
        raise BloomeryError(f"{preset!r} is no preset", f"one of {', '.join(PRESETS)}")
    chosen = [preset] if preset else list(PRESETS)
    table = Table("", *chosen, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    columns = [describe(PRESETS[name]) for name in chosen]
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    console.print(table, width=max(console.width, 150))


@app.command("import", **example("bloomery import models/llama"))
def import_(
    folder: Annotated[
        Path, typer.Argument(help="folder of a model: config.json, *.safetensors, tokenizer.json")
    ],
) -> None:
    """Take a model of the hub's layout into the store, to go on training it; prints the config for it."""
    import yaml

    from bloomery.config.model import ModelConfig
    from training.imports import import_model

    made = import_model(_store(), folder)
    console.print(f"{made.parameters:,} parameters in {made.manifest}\n")
    shape = made.model.model_dump(exclude_none=True)
    fresh = ModelConfig().model_dump()
    shape = {name: value for name, value in shape.items() if value != fresh.get(name)}
    config = {"train": {"init_from": {"checkpoint": made.manifest}, "model": shape}}
    if made.tokenizer:
        config = {"corpus": {"tokenizer": {"pinned": made.tokenizer}}, **config}
    else:
        note = f"{folder} has no tokenizer.json: pin the model's own in corpus.tokenizer\n"
        console.print(note, markup=False)
    print(yaml.safe_dump(config, sort_keys=False))


@app.command(**example("bloomery watch demo"))
def watch(run: Run) -> None:
    """Show a run while it trains on this machine: progress, rates, and where the time goes."""
    from training.provenance import find_run
    from training.watch import watch as follow

    key = find_run(_store(), run)
    follow(settings().home / "logs" / "train" / key[:16] / "metrics.jsonl", console)


@app.command(**example("bloomery checkpoints demo"))
def checkpoints(run: Run) -> None:
    """List a run's checkpoints: what `train.init_from.checkpoint` names, oldest first."""
    from bloomery.artifacts.journal import Journal
    from training.provenance import find_run

    table = Table("step", "held-out loss", "manifest", box=None, pad_edge=False)
    for found in Journal(_store(), find_run(_store(), run)).live():
        score = "" if found.score is None else f"{found.score:.4f}"
        table.add_row(f"{found.step:,}", score, found.digest)
    console.print(table)


# --- artifacts ----------------------------------------------------------------------------------


@app.command(**example("bloomery show models/demo/champion --json"))
def show(what: Reference, as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> None:
    """Print a manifest with its inputs and outputs."""
    from bloomery.artifacts.lineage import describe, find

    found = describe(_store(), find(_store(), what))
    print(json.dumps(found, indent=2)) if as_json else console.print_json(data=found)


@app.command(**example("bloomery refs"))
def refs(prefix: Annotated[str, typer.Argument(help="only refs that start so")] = "") -> None:
    """List the mutable names: published datasets, heads of runs, champions."""
    from bloomery.artifacts.refs import list_refs

    for ref in list_refs(_store(), prefix):
        console.print(f"{ref.name}  {json.dumps(ref.value)}", markup=False)


@app.command(**example("bloomery lineage models/demo/champion"))
def lineage(what: Reference) -> None:
    """Print what a manifest was made from, back to the snapshot, as a tree."""
    from rich.tree import Tree

    from bloomery.artifacts.lineage import Node, find, trace

    def grow(tree: Tree, node: Node) -> None:
        for name, parent in node.sources.items():
            grow(tree.add(f"[dim]{name}:[/] [bold]{parent.stage}[/] {parent.digest}"), parent)

    root = trace(_store(), find(_store(), what))
    tree = Tree(f"[bold]{root.stage}[/] {root.digest}")
    grow(tree, root)
    console.print(tree)


@app.command(**example("bloomery explain https://example.org/page --name demo"))
def explain(
    document: Annotated[str, typer.Argument(help="a document's id or URL")],
    name: Annotated[
        str | None,
        typer.Option(help="name of the run whose published dataset is asked; not asked of one alone"),
    ] = None,
) -> None:
    """Print a record's whole way: read, kept or dropped by which rule, duplicate of what, in which shard."""
    from bloomery.airflow.work import published, the_published
    from spark_jobs.explain import explain as trace_document

    for step in trace_document(_store(), published(name) if name else the_published(), document):
        console.print_json(data=step._asdict(), default=str)


@app.command(**example("bloomery export datasets/demo/published --format mds --to mds"))
def export(
    what: Reference,
    kind: Annotated[str, typer.Option("--format", help="mds (streaming), ds (datatrove) or npy (OLMo-core)")],
    to: Annotated[Path, typer.Option(help="folder to write, empty or not there yet")],
    dtype: Annotated[
        str | None, typer.Option(help="uint16, int32, uint32 or int64; none keeps the shards' own")
    ] = None,
) -> None:
    """Write a dataset's tokens as another trainer reads them. Megatron reads the shards as they are."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from bloomery.artifacts.lineage import find
    from bloomery.artifacts.run import artifact
    from bloomery.shards.export import export as write

    shards = artifact(_store(), find(_store(), what), "shards")
    columns = (TextColumn("{task.completed:,} of {task.total:,} tokens"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as shown:
        bar = shown.add_task("", total=shards.output.tokens)
        write(shards, kind, to, dtype, lambda done: shown.update(bar, completed=done))  # type: ignore[arg-type]
    console.print(f"{shards.output.documents:,} documents, {shards.output.tokens:,} tokens in {to}")


@app.command(**example("bloomery what-if demo --set clean.gopher.min_words=80"))
def what_if(
    name: Annotated[str, typer.Argument(help="name of the run whose published dataset is asked")],
    changes: Annotated[list[str], typer.Option("--set", help="a bound to try, clean.FAMILY.BOUND=VALUE")],
) -> None:
    """Print how many documents a changed bound would keep or drop, by rule; nothing is measured again."""
    from bloomery.airflow.work import published
    from spark_jobs.whatif import what_if as judge_again

    found = judge_again(_store(), published(name), changes)
    table = Table("documents", "verdict now", "verdict then", box=None, pad_edge=False)
    for flip in found.flips:
        table.add_row(f"{flip.documents:,}", flip.before, flip.after)
    console.print(table)
    console.print(f"kept: {found.kept_before:,} now, {found.kept_after:,} then")


@app.command(**example("bloomery trace demo --doc 0a1b2c3d4e5f60718293a4b5c6d7e8f9"))
def trace(
    run: Run,
    step: Annotated[int | None, typer.Option(help="a step, from 0: what it read")] = None,
    doc: Annotated[str | None, typer.Option(help="a document's id or URL: every step that saw it")] = None,
) -> None:
    """Print what a step of a training run read, or which steps saw a document; no log is needed.

    The first step is 0.
    """
    from training.provenance import trace_document, trace_step

    if (step is None) == (doc is None):
        raise BloomeryError("trace takes one of --step and --doc", "bloomery trace demo --step 100")
    opened = _run(run)
    if step is not None:
        parts = trace_step(opened, step)
        console.print_json(data={"run": opened.key, "table": opened.data.dataset.manifest.table})
        for part in parts:
            print(json.dumps(part._asdict() | {"origin": part.origin._asdict()}))
        return
    for document in _documents(opened, str(doc)):
        found, exposures = trace_document(opened, document)
        console.print_json(data=found._asdict() | {"origin": found.origin._asdict()})
        for exposure in exposures:
            print(json.dumps(exposure._asdict()))
        if not exposures:
            errors.print(f"no step of run {opened.key[:12]} reads {document}", markup=False)


@app.command(**example("bloomery takedown demo --doc 0a1b2c3d4e5f60718293a4b5c6d7e8f9"))
def takedown(
    run: Run,
    doc: Annotated[list[str], typer.Option(help="a document's id or URL; more than one may be given")],
) -> None:
    """Take documents down: no run emits them from its next start on, of this dataset or any other; lists the
    steps of this run that saw them."""
    from bloomery.shards.lookup import locate
    from training.provenance import trace_document
    from training.takedown import take_down

    opened = _run(run)
    documents = list(dict.fromkeys(name for one in doc for name in _documents(opened, one)))
    take_down(_store(), opened.shards.output.digest, locate(opened.data.dataset, documents, opened.local))
    for document in documents:
        _, exposures = trace_document(opened, document)
        steps = dict.fromkeys(str(exposure.step) for exposure in exposures if exposure.done)
        seen = f"steps of run {opened.key[:12]} that saw it: {', '.join(steps) or 'none'}"
        console.print(f"{document}: taken down; {seen}", markup=False)


@app.command(**example("bloomery verify-run demo"))
def verify_run(run: Run) -> None:
    """Read a run's data again, and compare with the receipt of its newest checkpoint, step by step."""
    from rich.progress import track

    from training.provenance import replay

    opened = _run(run, tokens=True)
    lost, damage = 0, set[str]()
    for found in track(replay(opened), "reading again", total=opened.index.step, console=console):
        lost += bool(found.damage)
        damage |= {part.what for part in found.damage}
        if not found.right and not found.damage:
            raise BloomeryError(
                f"step {found.step} is the first that differs: the run read something else there",
                "resume from a checkpoint before that step, with the code and data that made it",
            )
    console.print(f"{opened.index.step - lost} steps are as their receipt says: {opened.index.receipt}")
    if lost:
        raise BloomeryError(
            f"{lost} steps cannot be read any more: {'; '.join(sorted(damage))}",
            "bring it back from a copy; or `bloomery invalidate` the shards' key and run the corpus again",
        )


@app.command(**example("bloomery invalidate KEY --reason 'the extractor was wrong'"))
def invalidate(
    key: Annotated[str, typer.Argument(help="key of the stage, as `show` prints it")],
    reason: Annotated[str, typer.Option(help="why; kept for ever")],
) -> None:
    """Take a commit back, with an audited tombstone: the next run computes again."""
    from bloomery.artifacts.run import invalidate as take_back

    matches = [name.removeprefix("actions/") for name in _store().keys(f"actions/{key}")]
    key = matches[0] if len(matches) == 1 else key
    take_back(_store(), key, reason)
    console.print(f"{key} is invalidated")


@app.command(**example("bloomery waive VERDICT --reason 'known and harmless'"))
def waive(
    verdict: Annotated[str, typer.Argument(help="digest of the verdict's manifest")],
    reason: Annotated[str, typer.Option(help="why; kept for ever")],
) -> None:
    """Record a waiver: stages behind the failed gate may run; a model of data that it warned of may be
    released."""
    import getpass

    from bloomery.artifacts.lineage import find
    from bloomery.artifacts.manifest import read_manifest
    from bloomery.artifacts.refs import move_ref, read_ref

    verdict = find(_store(), verdict)
    if "verdict" not in read_manifest(_store(), verdict).outputs:
        raise BloomeryError(f"{verdict} is no verdict of a gate", "the failed task's log names it")
    value = {"digest": verdict, "reason": reason, "who": getpass.getuser(), "when": time.time()}
    move_ref(_store(), f"waivers/{verdict}", value, read_ref(_store(), f"waivers/{verdict}"))
    console.print(f"{verdict} is waived; clear the gate's task, or the release's task decide, to go on")


def _run(what: str, tokens: bool = False) -> Any:
    from training.provenance import find_run, open_run

    home = settings().home / "cache"
    key = find_run(_store(), what)
    return open_run(_store(), key, home / "trace", home / "bins", tokens)


def _documents(run: Any, named: str) -> list[str]:
    """Ids of the documents in the run's shards that go by an id, a publisher's id, a URL or a path."""
    from bloomery.shards.lookup import locate_known
    from spark_jobs.explain import ids_of

    if re.fullmatch("[0-9a-f]{32}", named):
        return [named]
    names = ids_of(_store(), run.manifest, named)
    return list(locate_known(run.data.dataset, names, run.local)) or names


def _store() -> Any:
    from bloomery.artifacts.store import open_store

    return open_store(settings().store_uri, settings().s3_endpoint)


if __name__ == "__main__":
    main()
