"""Loop, by what the tests of Accelerate and Fabric check, some of it beside these: in this process, and in two."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
NEEDED = {
    "own_loop_accelerate_script.py": "torch",
    "own_loop_beside_accelerate_script.py": "accelerate",
    "own_loop_beside_fabric_script.py": "lightning_fabric",
}
"""Scripts of checks, and the library that each runs."""
CHECKS: dict[tuple[str, str], Callable[[], None]] = {
    (script, name): function
    for script, library in NEEDED.items()
    if find_spec(library) is not None
    for name, function in runpy.run_path(str(HERE / script))["CHECKS"].items()
}
every_check = pytest.mark.parametrize(
    ("script", "name"),
    [pytest.param(*case, marks=[pytest.mark.sampled] if NEEDED[case[0]] != "torch" else []) for case in CHECKS],
)


@every_check
@pytest.mark.filterwarnings("default")  # of the libraries
def test_in_one_process(script: str, name: str) -> None:
    CHECKS[script, name]()


@pytest.fixture(scope="module")
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[dict[str, str]]]:
    """What two processes tell of the chosen checks: by name, the traceback of its failure, or nothing."""
    chosen: list[Any] = [item for item in request.session.items if item.name.startswith("test_in_two_processes[")]
    told: dict[str, list[dict[str, str]]] = {}

    def results(script: str) -> list[dict[str, str]]:
        if script not in told:
            folder = tmp_path_factory.mktemp("two")
            names = [item.callspec.params["name"] for item in chosen if item.callspec.params["script"] == script]
            start = [sys.executable, "-m", "anyaccel", "run", "--replicas", "2"]
            command = [*start, str(HERE / script), str(folder), *names]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "ANYACCEL_REPLICA_TIMEOUT": "60"}
            answer = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
            assert answer.returncode == 0, answer.stderr
            told[script] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
        return told[script]

    return results


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@every_check
def test_in_two_processes(two: Callable[[str], list[dict[str, str]]], script: str, name: str) -> None:
    failures = [results[name] for results in two(script)]
    assert failures == ["", ""], "\n".join(failures)
