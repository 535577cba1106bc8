"""The benchmarks run: all are valid Python, and the quick form of the main one gives figures with core alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.rglob("*.py"))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A Python program, with what it wrote; it finds what lies beside it, which PYTHONSAFEPATH would forbid."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_is_valid_and_says_what_it_is(script: Path) -> None:
    assert ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))


def test_quick_form_measures_and_draws(tmp_path: Path) -> None:
    into = tmp_path / "training.json"
    options = ("--quick", "--workloads", "tiny", "--only", "numpy", "by hand, torch", "--json", into)
    done = run(FOLDER / "training.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(into.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in told["tables"][0]["rows"]}
    assert len(rows["anyaccel, numpy, off"]["turns"]) == 2
    assert {"processor", "cores", "load_before"} <= set(told["machine"])
    assert "numpy" in told["versions"]
    base = rows["by hand, torch"]  # measured where torch is installed, and named as left out elsewhere
    assert "median" in base or "torch" in base["missing"]


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {"name": "one", "median": 2.0, "ratio": 1.0, "spread": 1.0, "median_ratio": 1.0, "first_s": 0.1, "turns": []}
    lost = {"name": "two", "missing": "not installed", "failed": False}
    bars = {"title": "t", "unit": "us a step", "base": "one", "rows": [row, lost]}
    lines = {"title": "torch, 3000 steps, cold caches", "unit": "s", "base": "off", "rows": [row | {"name": "off"}]}
    for name, table in (("training", bars), ("choosing", lines)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"benchmark": name, "tables": [table]}), encoding="utf-8")
    done = run(FOLDER / "harness/plots.py", tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = (tmp_path / "training.svg").read_text(encoding="utf-8")
    assert "us a step" in drawn
    assert "torch, cold caches" in (tmp_path / "choosing.svg").read_text(encoding="utf-8")


def test_failure_is_told_and_ends_with_an_error(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
        "from harness import Contestant, Options, Table, contest, report\n"
        "ones = [Contestant('wrong', 'a', 'math:sqrt', {'x': -1}), Contestant('absent', 'b', 'not_there:f')]\n"
        "report('x', [Table('t', contest(ones, 1), 'us', 1.0)], Options())\n"
    )
    done = run("-c", program)
    assert done.returncode == 1
    assert "failed: wrong" in done.stderr
    assert "not measured: absent: No module named 'not_there'" in done.stdout
