"""What a run came to, read from the store: funnel, loss curve, bits per byte, a sample, the release."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from bloomery.airflow.work import published, read_config, report_url, store, trained
from bloomery.artifacts.manifest import Manifest, read_manifest
from bloomery.artifacts.run import artifact
from bloomery.config.run import RunConfig
from bloomery.config.settings import settings
from bloomery.errors import BloomeryError
from training.layout import History
from training.report import sparkline
from validation.evals.pending import evaluation
from validation.release.promote import champion

OWN = """Your own corpus:
  copy configs/demo.yaml to configs/mine.yaml, give it a name of its own, drop auto_approve, and set
  sources: [{name: mine, uri: "/data/mine/*.jsonl.gz"}]
  bloomery run configs/mine.yaml"""


def show_result(config: str, until: str, console: Console) -> None:
    """Prints what the run with this config's digest came to, up to its last DAG."""
    run = read_config(config)
    try:
        item = published(run.name)
    except BloomeryError:
        return
    if item["config"] != config:
        console.print(f"another config's dataset is published under {run.name!r} by now")
        return
    _funnel(item, console)
    console.print(f"[bold]Report[/]   {report_url(item['report'])}")
    done = _trained(item) if until != "corpus" else None
    if done:
        _training(done, console)
        _evaluation(run, item, done, console)
    released = champion(store(), run.name)
    if released and until == "release":
        name = f"{released.name} version {released.version}"
        console.print(f"[bold]Release[/]  {name}, approved by {released.approver}\n  digest {released.model}")
    console.print(f"\n{OWN}\n", markup=False)


def _funnel(item: dict[str, str], console: Console) -> None:
    table = Table("stage", "kept", "not kept", "why", box=None, pad_edge=False, title_justify="left")
    for name in ("ingest", "clean", "dedup", "decontaminate"):
        facts = read_manifest(store(), item[name]).outputs["documents"].facts
        kept = facts["status"].get("kept", 0)
        reasons = ", ".join(f"{rule} {count:,}" for rule, count in _most(facts.get("rules", {})))
        table.add_row(name, f"{kept:,}", f"{sum(facts['status'].values()) - kept:,}", reasons)
    shards = read_manifest(store(), item["shard"]).outputs["shards"]
    table.add_row("shard", f"{shards.documents:,}", "0", f"{shards.tokens:,} tokens")
    console.print("[bold]Documents[/]")
    console.print(table, width=max(console.width, 120))


def _most(rules: dict[str, int]) -> Iterator[tuple[str, int]]:
    yield from sorted(rules.items(), key=lambda pair: -pair[1])[:6]


def _trained(item: dict[str, str]) -> Manifest | None:
    digest = trained(item)
    return read_manifest(store(), digest) if digest else None


def _training(trained: Manifest, console: Console) -> None:
    from training.report import loss_curve

    history = _history(trained)
    picture = settings().home / "reports" / f"loss-{trained.digest[:12]}.png"
    if not picture.exists():
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(loss_curve(history))
    line = f"{history.losses[0]:.3f} {sparkline(history.losses)} {history.losses[-1]:.3f}"
    console.print(f"\n[bold]Loss[/]     {line}   {picture}")


def _history(trained: Manifest) -> History:
    return History.model_validate_json(artifact(store(), trained.digest, "history").read())


def _evaluation(run: RunConfig, item: dict[str, str], trained: Manifest, console: Console) -> None:
    first, *_, last = _history(trained).held_out
    console.print(
        f"[bold]Bits per byte[/] of the first {run.train.held_out_sequences} held-out sequences: "
        f"{first.bits_per_byte:.4f} before training -> {last.bits_per_byte:.4f} after"
    )
    found = evaluation(store(), run.evaluate, {**item, "train": trained.digest})
    if found:
        measured = json.loads(artifact(store(), found, "eval").read())
        console.print(
            f"  of {measured['tokens']:,} held-out tokens, which the release is decided by: "
            f"{measured['bits_per_byte']:.4f}"
        )
        console.print("[bold]Sample[/]   ", end="")
        console.print(repr(measured["sample"]), markup=False)
