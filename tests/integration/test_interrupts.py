"""Interrupts at random instants, in every way to train: nothing is left behind, and all values are of one step.

A sample is interrupted each time; `ANYACCEL_TEST_FULL=1` interrupts 600 times.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .interrupted import MODES

SCRIPT = Path(__file__).with_name("interrupted.py")
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
SAMPLE = {"numpy, two nodes, validation": 8, "numpy streamed": 4, "numpy from a generator": 4, "torch off": 4}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is read from /proc")


@pytest.mark.parametrize("mode", MODES)
def test_a_phase_interrupted_at_any_instant_is_whole_and_leaves_nothing_behind(mode: str) -> None:
    count = 50 if FULL else SAMPLE.get(mode, 0)
    if not count:
        pytest.skip("set ANYACCEL_TEST_FULL=1")
    for name in ("torch", "tensorflow", "jax"):
        if name in mode or mode == "three frameworks":
            pytest.importorskip(f"anyaccel_{name}")
            pytest.importorskip(name)
    seed = str(os.getpid()) if FULL else "0"
    command = [sys.executable, str(SCRIPT), mode, str(count), seed]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert ended.returncode == 0 and f"{count} interrupts" in ended.stdout, f"seed {seed}: {ended.stderr[-3000:]}"
