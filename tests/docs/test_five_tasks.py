"""The scripts of "Five tasks beside other libraries": pairs print the same numbers, and the page has their sizes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "five-tasks.md"
# By task: what its scripts need, and the folder of its scripts.
TASKS = {
    "table": ("pandas sklearn anyaccel_sklearn anyaccel_torch", "five-tasks"),
    "loop": ("accelerate anyaccel_torch", "five-tasks"),
    "keras": ("keras tensorflow anyaccel_tensorflow", "coming-from"),
    "nnx": ("flax optax orbax.checkpoint anyaccel_jax", "five-tasks"),
    "transformers": ("transformers accelerate datasets anyaccel_transformers", "five-tasks"),
}
SETTINGS = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}


def script(task: str, kind: str) -> Path:
    return DOCS / "examples" / TASKS[task][1] / f"{task}_{kind}.py"


def tables(folder: Path) -> None:
    """Write the CSV files of the first task: text, a date, missing values."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    age = np.where(rng.random(1000) < 0.1, np.nan, rng.integers(16, 80, 1000))
    plan = rng.choice(["day", "month", "year", None], 1000)
    minutes = 12 + 9 * (plan == "day") + 0.1 * np.nan_to_num(age, nan=40) + rng.normal(0, 2, 1000)
    start = pandas.date_range("2024-01-01", periods=1000, freq="131min")
    rides = pandas.DataFrame({"age": age, "plan": plan, "start": start, "late": np.where(minutes > 22, "yes", "no")})
    rides.iloc[:800].to_csv(folder / "train.csv", index=False)
    rides.iloc[800:].to_csv(folder / "test.csv", index=False)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in TASKS if task != "keras"])  # test_coming_from.py runs Keras'
def test_both_scripts_print_the_same(task: str, tmp_path: Path) -> None:
    for module in TASKS[task][0].split():
        pytest.importorskip(module)
    printed = {}
    for kind in ("theirs", "ours"):
        folder = tmp_path / kind
        folder.mkdir()
        if task == "table":
            tables(folder)
        command = [sys.executable, str(script(task, kind))]
        settings = {**os.environ, **SETTINGS}
        answer = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        lines = answer.stdout.splitlines()
        printed[kind] = [line for line in lines if not line.startswith("{'")]  # the log of Trainer
    if task == "table":  # other models: the page compares their accuracy
        ours, theirs = (float(printed[kind][-1].split()[1]) for kind in ("ours", "theirs"))
        assert ours > 0.85 and abs(ours - theirs) < 0.06
    else:
        assert printed["ours"] == printed["theirs"] and printed["ours"]


def n_lines(file: Path) -> int:
    """The lines of a script without its docstring, comments and empty lines."""
    text = file.read_text("utf-8")
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    return sum(bool(line.strip()) and not line.strip().startswith("#") and "__future__" not in line for line in lines)


def test_the_page_has_the_sizes_of_the_scripts() -> None:
    page = PAGE.read_text("utf-8")
    for task in TASKS:
        row = re.search(rf"^\| {task} \|.*$", page, re.MULTILINE)
        assert row, task
        sizes = [int(cell) for cell in re.findall(r"\| (\d+) (?=\|)", row[0])][:2]
        assert sizes == [n_lines(script(task, "ours")), n_lines(script(task, "theirs"))], task
