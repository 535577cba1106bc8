"""Real shortage of memory, by a limit of the address space of a process of its own: phases recover, or lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import frameworks

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux's address space limits")

PROGRAM = Path(__file__).parent.parent / "real_out_of_memory.py"
# Memory is asked for, and given back, array by array; one thread, as each has a stack and an arena of its own.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "262144",
    "MALLOC_TRIM_THRESHOLD_": "262144",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "JAX_ENABLE_X64": "0",
}
# The width of the model, and MiB: enough for what frameworks need beside their arrays, as without that some of them end
# the process. JAX compiles again for smaller steps.
SIZES = {
    "numpy": (8192, 150, 150),
    "torch": (8192, 100, 100),
    "jax": (16384, 180, 110),
    "tensorflow": (16384, 165, 165),
}


@cache
def reports(framework: str) -> dict[str, Any]:
    """What the program says of each scenario; it is run once."""
    width, training, others = SIZES[framework]
    scenarios = (f"training={training}", f"ending={others}", f"evaluation={others}")
    command = [sys.executable, str(PROGRAM), framework, str(width), *scenarios]
    ended = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def with_numpy(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("name", ["numpy", *frameworks()])(test)


@with_numpy
def test_training_recovers_with_the_numbers_of_a_run_with_enough_memory(name: str) -> None:
    report = reports(name)["training"]
    assert report["error"] == ""
    assert report["measures"][0] == "rows are streamed from now on"
    np.testing.assert_allclose(report["losses"], report["expected"], rtol=1e-6)
    assert report["difference"] < 1e-6


@with_numpy
def test_training_that_ends_leaves_the_values_of_its_last_snapshot(name: str) -> None:
    """Nothing is known of its loss, so that steps may not get smaller; the snapshot is the start of the epoch."""
    report = reports(name)["ending"]
    assert report["error"].startswith("OutOfMemoryError: phase 't': not enough memory to train 2,048 rows at once, ")
    assert "StateError" not in report["error"] and "lost" not in report["error"]
    assert len(report["losses"]) == 1 and report["difference"] == 0.0


@with_numpy
def test_an_evaluation_recovers_with_the_numbers_of_one_with_enough_memory(name: str) -> None:
    report = reports(name)["evaluation"]
    assert report["error"] == "" and report["difference"] < 1e-5
