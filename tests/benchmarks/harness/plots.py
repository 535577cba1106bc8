"""Draws what benchmarks wrote: `python tests/benchmarks/harness/plots.py FOLDER` makes an SVG of each table.

Names are those of the JSON files, with a number where a file has several tables. Text stays text, so that the pictures
are small.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "anyaccel", "font.size": 9, "axes.spines.top": False}
OURS, BASE, OTHERS = "#2a6fbb", "#444444", "#b9bec6"
MODES = {"off": OTHERS, "steps": BASE, "auto": OURS}


def main(folder: Path) -> None:
    """Draw every file of a folder."""
    with mpl.rc_context(STYLE):
        for path in sorted(folder.glob("*.json")):
            told = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(told, dict) or "tables" not in told:
                continue  # of a benchmark that shows its figures otherwise
            tables = [one for one in told["tables"] if any("median" in row for row in one["rows"])]
            if told["benchmark"] == "choosing":
                choices(tables, path.with_suffix(".svg"))
                continue
            for number, table in enumerate(tables):
                bars(table, path.with_name(f"{path.stem}{number or ''}.svg"))


def bars(table: dict[str, Any], path: Path) -> None:
    """A bar for each contestant, on a logarithmic axis where they differ much."""
    rows = sorted((row for row in table["rows"] if "median" in row), key=lambda row: -float(row["median"]))
    medians = [row["median"] for row in rows]
    figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.24 * len(rows)), layout="constrained")
    drawn = axes.barh(
        [row["name"] for row in rows], medians, color=[colour(row["name"], table["base"]) for row in rows]
    )
    axes.bar_label(drawn, [label(row) for row in rows], padding=3)
    if max(medians) > 20 * min(medians):
        axes.set_xscale("log")
    axes.margins(x=0.18)
    axes.spines["right"].set_visible(False)
    axes.set_title(table["title"], loc="left", fontsize=10)
    axes.set_xlabel(f"{table['unit']}, median" + ("; in brackets, the ratio" if table["base"] else ""))
    save(figure, path)


def colour(name: str, base: str | None) -> str:
    """Ours, the base, and all others."""
    return BASE if name == base else OURS if name.startswith("anyaccel") else OTHERS


def label(row: dict[str, Any]) -> str:
    """The median, and the ratio if there is one."""
    median, ratio = row["median"], row.get("ratio")
    text = f"{median:,.0f}" if median >= 1000 else f"{median:.3g}"
    return text if ratio is None else f"{text} ({ratio:.2f})"


def choices(tables: Iterable[dict[str, Any]], path: Path) -> None:
    """Seconds over the number of steps, a line for each mode and a picture for each framework and state of caches."""
    groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for table in tables:
        framework, steps, state = table["title"].split(", ")
        groups.setdefault(f"{framework}, {state}", []).append((int(steps.split()[0]), table))
    if not groups:
        return
    figure, panels = plt.subplots(1, len(groups), figsize=(2.6 * len(groups), 2.6), layout="constrained", squeeze=False)
    for axes, (title, found) in zip(panels[0], groups.items(), strict=True):
        for mode, shade in MODES.items():
            rows = [(steps, row) for steps, table in found for row in table["rows"] if row["name"] == mode]
            points = sorted((steps, row["median"]) for steps, row in rows if "median" in row)
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=shade, label=mode)
        axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="s")
        axes.set_title(title, loc="left", fontsize=9)
        axes.legend(frameon=False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a picture that is the same for the same figures."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
