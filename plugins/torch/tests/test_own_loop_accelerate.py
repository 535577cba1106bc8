"""Loop, by what Accelerate's own tests check: in this process, and in two."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("own_loop_accelerate_script.py")
_SPEC = importlib.util.spec_from_file_location("own_loop_accelerate_script", SCRIPT)
assert _SPEC and _SPEC.loader
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
CHECKS: dict[str, Callable[[], None]] = _MODULE.CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_in_one_process(name: str) -> None:
    CHECKS[name]()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What two processes tell: by name of a check, the traceback of its failure, or nothing."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "anyaccel", "run", "--replicas", "2", str(SCRIPT), str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ANYACCEL_REPLICA_TIMEOUT": "60"}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert answer.returncode == 0, answer.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("name", CHECKS)
def test_in_two_processes(two: list[dict[str, str]], name: str) -> None:
    assert [results[name] for results in two] == ["", ""], "\n".join(results[name] for results in two)
