"""Interrupts at instants over the whole life of a phase, in every way to train: nothing is left behind, and all values
are of one step.

A sample is interrupted; `ANYACCEL_TEST_FULL=1` interrupts 50 times in each mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .interrupted.faults import FAULTS
from .interrupted.modes import MODES

FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
SAMPLE = {"numpy, two nodes, validation": 11, "numpy streamed": 10, "numpy from a generator": 10, "torch off": 11}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is read from /proc")


def interrupt(mode: str, count: int, seed: int, *fault: str) -> subprocess.CompletedProcess[str]:
    """Interrupt phases in a process of their own."""
    command = [sys.executable, "-m", "integration.interrupted", mode, str(count), str(seed), *fault]
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(Path(tempfile.gettempdir()) / "anyaccel_torchinductor")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": cache}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=3000,
            cwd=Path(__file__).parents[1],
            env=environment,
        )


WITHOUT_FRAMEWORK = pytest.mark.without_framework
OF_MODES = [pytest.param(name, marks=() if mode.frameworks else WITHOUT_FRAMEWORK) for name, mode in MODES.items()]


@pytest.mark.parametrize("mode", OF_MODES)
def test_a_phase_interrupted_at_any_instant_is_whole_and_leaves_nothing_behind(mode: str) -> None:
    count = 50 if FULL else SAMPLE.get(mode, 0)
    if not count:
        pytest.skip("set ANYACCEL_TEST_FULL=1")
    for name in MODES[mode].frameworks:
        pytest.importorskip(f"anyaccel_{name}")
        pytest.importorskip(name)
    seed = os.getpid() if FULL else 0
    ended = interrupt(mode, count, seed)
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr[-3000:]}"
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["interrupts"] == count == sum(result["stages"].values())
    assert len(result["stages"]) >= 5, "instants are spread over the whole life of a phase"


@WITHOUT_FRAMEWORK
@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_interrupt_leaves_behind_is_noticed(fault: str) -> None:
    ended = interrupt("numpy streamed", 20, 0, fault)
    assert ended.returncode != 0 and FAULTS[fault][1] in ended.stderr, ended.stdout + ended.stderr[-3000:]
