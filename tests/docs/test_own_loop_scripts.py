"""The scripts of docs/examples/own-loop: few lines differ from the plain loop, and no number."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("anyaccel_torch")

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "docs/examples/own-loop"
PAGE = HERE.parents[1] / "docs/how-to/coming-from-accelerate.md"
NAMES = ("image_classification", "gradient_accumulation", "checkpointing", "gan")
ARGUMENTS = {"checkpointing": "2,4"}  # numbers of epochs: it is run, and resumed
NUMBER = re.compile(r"-?\d+\.\d+|\d+")


def changes(name: str) -> tuple[list[str], list[str]]:
    """Lines of code that are in the script with Loop alone, and in the plain one alone."""
    plain, loop = (
        [line for line in (FOLDER / f"{name}_{kind}.py").read_text("utf-8").splitlines() if line.strip()]
        for kind in ("plain", "loop")
    )
    marked = list(difflib.ndiff(plain, loop))
    return [line for line in marked if line.startswith("+ ")], [line for line in marked if line.startswith("- ")]


@pytest.mark.parametrize("name", NAMES)
def test_six_lines_change(name: str) -> None:
    written, _ = changes(name)
    assert 0 < len(written) <= 6, "\n".join(written)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_how_many(name: str) -> None:
    written, gone = changes(name)
    row = next(
        line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|") and f"{name}_loop.py" in line
    )
    assert [int(cell) for cell in row.split("|")[3:5]] == [len(written), len(gone)]


Results = tuple[str, list[dict[str, np.ndarray]]]
"""What a script prints in all processes, and the weights that each ends with."""


def results(kinds: tuple[str, ...], folder: Path, size: int) -> dict[str, Results]:
    launcher = ["-m", "anyaccel", "run", "--replicas", str(size)] if size > 1 else []
    scripts = [
        f"{FOLDER / f'{name}_{kind}.py'}={'4' if kind == 'plain' else ARGUMENTS.get(name, '')}"
        for name in NAMES
        for kind in kinds
    ]
    command = [sys.executable, *launcher, str(HERE / "own_loop_script.py"), str(folder), *scripts]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False, env=env)
    assert answer.returncode == 0, answer.stderr
    return {
        f"{name}_{kind}": (
            "".join((folder / f"{name}_{kind}/printed-{rank}.txt").read_text("utf-8") for rank in range(size)),
            [dict(np.load(folder / f"{name}_{kind}/weights-{rank}.npz")) for rank in range(size)],
        )
        for name in NAMES
        for kind in kinds
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Of one process."""
    return results(("plain", "loop"), tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Of two processes."""
    return results(("loop",), tmp_path_factory.mktemp("together"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_the_plain_loop(
    name: str, alone: dict[str, Results], together: dict[str, Results]
) -> None:
    printed, (weights,) = alone[f"{name}_plain"]
    assert weights and len(printed.splitlines()) >= 3
    for others, of_processes in (alone[f"{name}_loop"], together[f"{name}_loop"]):
        assert NUMBER.sub("", others) == NUMBER.sub("", printed)
        numbers, expected = (np.array(NUMBER.findall(text), float) for text in (others, printed))
        np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=1e-6)
        for own in of_processes:
            assert own.keys() == weights.keys()
            for key, value in weights.items():
                np.testing.assert_allclose(own[key], value, rtol=0, atol=1e-6, err_msg=key)
