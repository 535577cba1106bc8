"""Figures as tables on the terminal and as a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Drawn

from harness.figures import Table, shown
from harness.machine import load, machine, versions
from harness.options import Options


def report(name: str, tables: Iterable[Table], given: Options, **more: Any) -> None:
    """Print tables as they come, and write all of them where `--json` says.

    Args:
        name: of the benchmark.
        tables: made while they are asked for, so that each is shown as soon as it is measured.
        given: the command line.
        more: further plain data for the file.

    Raises:
        SystemExit: when all is shown and written, if a contestant failed. What is not installed is no failure.
    """
    console = Console(width=max(Console().width, 110))
    began, where = datetime.now(UTC), machine()
    found: list[dict[str, Any]] = []
    for table in tables:
        rows = table.rows()
        _show(console, table, rows)
        found.append({"title": table.title, "unit": table.unit, "base": table.base, "rows": rows})
    if given.json is not None:
        settings = {"threads": given.threads, "quick": given.quick}
        told = {"benchmark": name, "date": f"{began:%Y-%m-%d %H:%M} UTC", "machine": where | {"load_after": load()}}
        _write(given.json, {**told, "versions": versions(), "settings": settings, **more, "tables": found})
    failed = [row["name"] for table in found for row in table["rows"] if row.get("failed")]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _write(path: Path, told: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(told), indent=1) + "\n", encoding="utf-8")


def _show(console: Console, table: Table, rows: list[dict[str, Any]]) -> None:
    beside = f", beside {table.base}" if table.base else ""
    drawn = Drawn(title=f"{table.title}{beside}", title_justify="left")
    drawn.add_column("")
    for head in (table.unit, "ratio", "spread", "median ratio", "first turn"):
        drawn.add_column(head, justify="right")
    for row in rows:
        if "missing" not in row:
            drawn.add_row(row["name"], *_cells(row))
    console.print(drawn)
    for row in rows:
        if "missing" in row:
            console.print(f"not measured: {row['name']}: {row['missing']}", markup=False)


def _cells(row: dict[str, Any]) -> list[str]:
    ratios = [f"{row[name]:.3f}" if name in row else "" for name in ("ratio", "spread", "median_ratio")]
    return [shown(row["median"]), *ratios, f"{row['first_s']:.2f} s"]


def _rounded(value: Any) -> Any:
    """Plain data with figures of five digits, and None for what is no number."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
