"""Draws docs/architecture.svg: the planes, their rooms, and what flows between them. `make docs`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT = 1180, 640
PLANES = [
    (
        "control",
        "dags/ · plugins/ · bloomery/airflow · bloomery/cluster",
        "what runs when and where; retries, approvals, recovery",
        "#e7eefb",
        40,
    ),
    ("data", "spark_jobs/", "raw corpora to immutable token shards", "#e6f4ea", 160),
    ("compute", "training/", "model, loader, step loop, checkpoints", "#fdf0e3", 330),
    (
        "artifact",
        "validation/ · bloomery/artifacts · bloomery/shards · bloomery/config",
        "stages, manifests, store, gates, evals, releases",
        "#f3e9f7",
        480,
    ),
]
DAGS = [
    ("corpus", 40, 545),
    ("pretrain", 600, 150),
    ("evaluate", 765, 150),
    ("release", 930, 210),
]
DATA = [
    "snapshot",
    "ingest",
    "measure",
    "clean",
    "dedup",
    "gate",
    "tokenizer",
    "shard",
    "gate",
]
STORE = [
    ("data/**", "attempts' tables, shards, checkpoints"),
    ("manifests/", "what was made, immutable"),
    ("actions/", "the commit of a key"),
    ("refs/**", "published, heads, champions"),
]


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "#57606a") -> str:
    """A rounded box."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{stroke}"/>'


def text(x: float, y: float, words: str, size: int = 14, weight: str = "400", anchor: str = "start") -> str:
    """A line of text."""
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {style}>{escaped}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> str:
    """An arrow from one point to another."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="M{x1} {y1} L{x2} {y2}" stroke="#24292f" fill="none" marker-end="url(#head)"{dash}/>'


def draw() -> str:
    """The whole picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui,Segoe UI,Helvetica,Arial,sans-serif" fill="#24292f">',
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#24292f"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    heights = {"control": 100, "data": 150, "compute": 130, "artifact": 145}
    for name, rooms, owns, fill, y in PLANES:
        parts.append(box(12, y - 28, WIDTH - 24, heights[name], fill, "none"))
        parts.append(text(24, y - 8, f"{name} plane", 15, "700"))
        parts.append(text(150, y - 8, f"{rooms}:  {owns}", 12))
    for name, x, width in DAGS:
        parts += [
            box(x, 56, width, 40, "#ffffff"),
            text(x + width / 2, 81, f"DAG {name}", 14, "600", "middle"),
        ]
    for (_, x, width), (_, after, _) in pairwise(DAGS):
        parts.append(arrow(x + width, 76, after, 76))
    step = 568 / len(DATA)
    for index, name in enumerate(DATA):
        x = 40 + index * step
        round_ = "#fff8c5" if name == "gate" else "#ffffff"
        parts += [
            box(x, 180, step - 12, 40, round_),
            text(x + (step - 12) / 2, 205, name, 11, "600", "middle"),
        ]
        if index:
            parts.append(arrow(x - 12, 200, x, 200))
    parts.append(
        text(
            40,
            246,
            "one shared Spark engine (Connect); every stage writes Delta tables below its attempt",
            12,
        )
    )
    parts += [box(620, 180, 150, 40, "#ffffff"), text(695, 205, "dataset", 14, "600", "middle")]
    parts.append(arrow(40 + len(DATA) * step - 12, 200, 620, 200))
    parts += [box(620, 352, 150, 40, "#ffffff"), text(695, 377, "train (DeepSpeed)", 13, "600", "middle")]
    parts.append(arrow(695, 220, 695, 352))
    parts += [box(815, 352, 130, 40, "#ffffff"), text(880, 377, "checkpoints", 13, "600", "middle")]
    parts.append(arrow(770, 372, 815, 372))
    parts.append(text(620, 416, "a journal: head moves by compare-and-swap", 12))
    parts += [box(815, 500, 130, 34, "#ffffff"), text(880, 522, "evaluate", 13, "600", "middle")]
    parts += [box(985, 500, 165, 34, "#fff8c5"), text(1067, 522, "policy + approval", 13, "600", "middle")]
    parts += [box(985, 556, 165, 34, "#ffffff"), text(1067, 578, "signed release", 13, "600", "middle")]
    parts += [arrow(880, 392, 880, 500), arrow(945, 517, 985, 517), arrow(1067, 534, 1067, 556)]
    for index, (key, what) in enumerate(STORE):
        x = 40 + (index % 2) * 385
        y = 500 + (index // 2) * 48
        parts += [
            box(x, y, 365, 38, "#ffffff"),
            text(x + 12, y + 24, key, 13, "700"),
            text(x + 120, y + 24, what, 12),
        ]
    parts.append(
        text(
            40,
            622,
            "the store: a folder or S3; one conditional put commits, nothing else is ever visible",
            12,
        )
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(draw(), encoding="utf-8")
