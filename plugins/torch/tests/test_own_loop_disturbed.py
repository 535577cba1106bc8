"""Own loops that are killed or interrupted at random instants go on to the losses of an undisturbed run.

A few are disturbed; `ANYACCEL_TEST_FULL=1` kills 100 and interrupts 100, in one process and in two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not hasattr(os, "fork"), reason="processes are forked, and join"
)
SCRIPT = Path(__file__).with_name("disturbed_own_loop.py")
COUNT = 100 if os.environ.get("ANYACCEL_TEST_FULL") else 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("kill", 2), ("interrupt", 1)),
        *(pytest.param(*case, marks=pytest.mark.whole) for case in (("kill", 1), ("interrupt", 2))),
    ],
)
def test_every_run_goes_on_to_the_losses_of_an_undisturbed_one(kind: str, size: int) -> None:
    command = [sys.executable, str(SCRIPT), kind, str(size), str(COUNT), str(os.getpid() if COUNT > 2 else 0)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=90 * (COUNT + 2), env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1])["disturbed"] >= COUNT
