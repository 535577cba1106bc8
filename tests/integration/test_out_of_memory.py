"""Real shortage of memory, by a limit of the address space of a process of its own: phases recover, or lose nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
SCENARIOS = ("training", "ending", "evaluation")


class Size(NamedTuple):
    """The width of the model, and MiB beside what is in use, for each scenario.

    Frameworks need some MiB beside their arrays, JAX more than others as it compiles smaller steps. Further limits are
    tried where memory sufficed, or where a thread of the framework's own ended the process.
    """

    width: int
    limits: tuple[tuple[int, int, int], ...]


SIZES = {
    "numpy": Size(8192, ((150, 150, 90),)),
    "torch": Size(8192, ((100, 100, 80),)),
    "jax": Size(32768, ((400, 300, 180), (440, 350, 210), (340, 200, 150))),
    "tensorflow": Size(16384, ((165, 165, 100), (180, 180, 115), (150, 150, 80))),
}


def report_of(framework: str, scenario: str) -> dict[str, Any]:
    """What the program says of a scenario in which memory ran out."""
    width, limits = SIZES[framework]
    tried = [each[SCENARIOS.index(scenario)] for each in limits]
    for mib in tried:
        report = told(framework, width, scenario, mib)
        if report and (report["measures"] or report["error"]):
            return report
        assert not report or scenario == "ending" or report["difference"] == 0.0  # there was enough memory
    pytest.fail(f"memory did not run out in {scenario} with {tried} MiB")


def told(framework: str, width: int, scenario: str, mib: int) -> dict[str, Any]:
    """What the program says; nothing if a thread of the framework's own ended it for want of memory."""
    command = [sys.executable, str(PROGRAM), framework, str(width), f"{scenario}={mib}"]
    ended = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=300)
    if ended.returncode == -signal.SIGABRT and "std::bad_alloc" in ended.stderr:
        return {}
    assert ended.returncode == 0, ended.stderr[-4000:]
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def with_numpy(test: Callable[..., None]) -> Callable[..., None]:
    numpy = pytest.param("numpy", marks=pytest.mark.without_framework)
    return pytest.mark.parametrize("name", [numpy, *(name for name in frameworks() if name in SIZES)])(test)


@with_numpy
def test_training_recovers_with_the_numbers_of_a_run_with_enough_memory(name: str) -> None:
    report = report_of(name, "training")
    assert report["error"] == ""
    assert report["measures"][0] == "rows are streamed from now on"
    np.testing.assert_allclose(report["losses"], report["expected"], rtol=1e-6)
    assert report["difference"] < 1e-6


@with_numpy
def test_training_that_ends_leaves_the_values_of_its_last_snapshot(name: str) -> None:
    """Nothing is known of its loss, so that steps may not get smaller; the snapshot is the start of the epoch."""
    report = report_of(name, "ending")
    assert report["error"].startswith("OutOfMemoryError: phase 't': not enough memory to train 2,048 rows at once, ")
    assert "StateError" not in report["error"] and "lost" not in report["error"]
    assert len(report["losses"]) == 1 and report["difference"] == 0.0


@with_numpy
def test_an_evaluation_recovers_with_the_numbers_of_one_with_enough_memory(name: str) -> None:
    report = report_of(name, "evaluation")
    assert report["error"] == "" and report["difference"] < 1e-5
    assert report["measures"]
