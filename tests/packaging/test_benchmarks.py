"""The benchmarks: all are valid Python, and the quick form of the main one measures core alone."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.rglob("*.py"))


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python. Without PYTHONSAFEPATH, as benchmarks import modules beside them."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"} | variables
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_benchmark_has_a_docstring(script: Path) -> None:
    assert ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))


def test_the_quick_form_measures_every_framework_that_is_installed(tmp_path: Path) -> None:
    into = tmp_path / "training.json"
    options = ("--quick", "--workloads", "tiny", "--only", "numpy", "by hand, torch", "--json", into)
    child = run(FOLDER / "training.py", *options)
    assert child.returncode == 0, child.stdout + child.stderr
    report = json.loads(into.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in report["tables"][0]["rows"]}
    assert len(rows["anyaccel, numpy, off"]["turns"]) == 2
    assert {"processor", "cores", "load_before"} <= set(report["machine"])
    assert "numpy" in report["versions"]
    base = rows["by hand, torch"]  # measured if torch is installed, else reported as missing
    assert "median" in base or "torch" in base["missing"]


def test_charts_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {"name": "one", "median": 2.0, "ratio": 1.0, "spread": 1.0, "median_ratio": 1.0, "first_s": 0.1, "turns": []}
    lost = {"name": "two", "missing": "not installed", "failed": False}
    bars = {"title": "t", "unit": "us a step", "base": "one", "rows": [row, lost]}
    lines = {"title": "torch, 3000 steps, cold caches", "unit": "s", "base": "off", "rows": [row | {"name": "off"}]}
    for name, table in (("training", bars), ("choosing", lines)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"benchmark": name, "tables": [table]}), encoding="utf-8")
    child = run(FOLDER / "harness/plots.py", tmp_path)
    assert child.returncode == 0, child.stderr
    drawn = (tmp_path / "training.svg").read_text(encoding="utf-8")
    assert "us a step" in drawn
    assert "torch, cold caches" in (tmp_path / "choosing.svg").read_text(encoding="utf-8")


def test_two_versions_are_compared_by_their_ratios(tmp_path: Path) -> None:
    for name, ours in (("before", 3.0), ("after", 4.5), ("again", 6.0), ("slower", 6.0)):
        rows = [{"name": "base", "median": 2.0}, {"name": "ours", "median": ours}, {"name": "lost", "missing": "x"}]
        run_of = {"commit": name, "tables": [{"title": "t", "base": "base", "rows": rows}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(run_of), encoding="utf-8")
    both = [json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in ("before", "slower")]
    (tmp_path / "several.json").write_text(json.dumps(both), encoding="utf-8")
    after = [tmp_path / f"{name}.json" for name in ("after", "again", "slower")]
    for before in ((tmp_path / "before.json",), (tmp_path / "several.json", "--commit", "before")):
        child = run(FOLDER / "harness/compare.py", *before, "--after", *after, COLUMNS="120")
        assert child.returncode == 0, child.stderr
        assert (
            "t: ours" in child.stdout and "1.500" in child.stdout and "2.000" in child.stdout and "1, 3" in child.stdout
        )


def test_figures_of_earlier_versions_can_be_compared_with() -> None:
    for path in (FOLDER / "figures").glob("*.json"):
        commits = {run["commit"] for run in json.loads(path.read_text(encoding="utf-8"))}
        child = run(FOLDER / "harness/compare.py", path, "--commit", min(commits), "--after", path)
        assert child.returncode == 0 and "anyaccel, torch, off" in child.stdout, child.stderr


def test_a_failure_is_reported_with_an_exit_status(tmp_path: Path) -> None:
    program = (
        "from harness import Contestant, Options, Table, contest, report\n"
        "ones = [Contestant('wrong', 'a', 'math:sqrt', {'x': -1}), Contestant('absent', 'b', 'not_there:f')]\n"
        "report('x', [Table('t', contest(ones, 1), 'us', 1.0)], Options())\n"
    )
    child = run("-c", program, PYTHONPATH=str(FOLDER))
    assert child.returncode == 1
    assert "failed: wrong" in child.stderr
    assert "not measured: absent: No module named 'not_there'" in child.stdout


def test_placements_are_near_the_best_known(tmp_path: Path) -> None:
    """Of graphs made for it; of the published workloads where ANYACCEL_PLACEMENT_WORKLOADS names a checkout of them."""
    published = "ANYACCEL_PLACEMENT_WORKLOADS" in os.environ
    into = tmp_path / "placement.json"
    child = run(FOLDER / "placement.py", *([] if published else ["--quick"]), "--json", into)
    assert child.returncode == 0, child.stdout + child.stderr
    rows = json.loads(into.read_text(encoding="utf-8"))
    assert {row["tight"] for row in rows} == {False, True}
    for tight in (False, True):
        ratios = [row["ratio"] for row in rows if row["tight"] is tight]
        assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= (1.01 if published else 1.2)
