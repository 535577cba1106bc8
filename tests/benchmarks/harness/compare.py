"""Two versions beside each other: how much of each row's ratio to its base another version takes.

Run the same benchmark of both versions in turns on an idle machine, each with `--json FILE`, then
`python tests/benchmarks/harness/compare.py BEFORE.json ... --after AFTER.json ...`. A ratio is within one run, so that
noise of the machine is in both its parts; of several runs the median counts, and of a table without a base the figures
themselves. `figures/` has those of earlier versions: a file with several runs has the `commit` of each, and `--commit`
chooses one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

Ratios = dict[tuple[str, str], list[float]]


def ratios(files: Iterable[Path], commit: str) -> Ratios:
    """The median of each row over that of its table's base, for each run, by title and name."""
    found: Ratios = {}
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        for run in content if isinstance(content, list) else [content]:
            if not run.get("commit", "").startswith(commit):
                continue
            for table in run["tables"]:
                measured = {row["name"]: row["median"] for row in table["rows"] if "median" in row}
                for name, value in measured.items():
                    found.setdefault((table["title"], name), []).append(value / measured.get(table["base"], 1.0))
    return found


def main() -> None:
    """Print the rows that both versions have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="+", type=Path)
    parser.add_argument("--after", nargs="+", type=Path, required=True)
    parser.add_argument("--commit", default="", help="of the runs before, where a file has those of several")
    asked = parser.parse_args()
    before, after = ratios(asked.before, asked.commit), ratios(asked.after, "")
    table = Table("", "before", "after", "after / before", "runs")
    for row in (row for row in before if row in after):
        old, new = median(before[row]), median(after[row])
        runs = f"{len(before[row])}, {len(after[row])}"
        table.add_row(": ".join(row), f"{old:.3f}", f"{new:.3f}", f"{new / old:.3f}", runs)
    Console().print(table)


if __name__ == "__main__":
    main()
