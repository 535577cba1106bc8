"""Runs whose processes are killed at random instants: what is left is a valid checkpoint, and going on gives the same.

A sample is killed; `nox -s kills`, or `ANYACCEL_TEST_KILLS=1000`, kills so many processes, in every way to train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .kills.loops import LOOPS

KILLS = int(os.environ.get("ANYACCEL_TEST_KILLS", "0"))
SAMPLE = {"numpy": 8}
FRAMEWORK = {"torch": ("torch",), "jax": ("jax", "flax"), "tensorflow": ("tensorflow", "keras"), "": ()}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
WITHOUT_FRAMEWORK = pytest.mark.without_framework
OF_LOOPS = [pytest.param(name, marks=() if loop.plugin else WITHOUT_FRAMEWORK) for name, loop in LOOPS.items()]


@pytest.mark.parametrize("name", OF_LOOPS)
def test_a_run_that_is_killed_at_any_instant_goes_on_to_the_bit(name: str) -> None:
    """Each that was killed leaves a checkpoint that is valid, and loses at most an interval and what it was writing."""
    count = round(KILLS * LOOPS[name].share) if KILLS else SAMPLE.get(name, 0)
    if not count:
        pytest.skip("set ANYACCEL_TEST_KILLS=1000")
    for module in FRAMEWORK[LOOPS[name].plugin]:
        pytest.importorskip(module)
    command = [sys.executable, "-m", "integration.kills", name, str(count), str(os.getpid() if KILLS else 0)]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    print(ended.stdout)
    assert result["kills"] == count == sum(result["stages"].values()) == sum(result["lost steps"].values())
