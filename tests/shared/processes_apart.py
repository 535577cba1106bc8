"""Own loops in processes of which the last does something else: their errors, and how soon all end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def _run(script: Path, *arguments: str, size: int, timeout: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anyaccel", "run", "--replicas", str(size), str(script), *arguments]
    env = {**os.environ, "ANYACCEL_REPLICA_TIMEOUT": timeout}
    return subprocess.run(command, capture_output=True, text=True, timeout=560, check=False, env=env)


def expected(error: str, size: int) -> str:
    """Return the pattern of an error in so many processes: LAST is the one that does something else, of SIZE."""
    return error.replace("LAST", str(size - 1)).replace("SIZE", str(size))


def results_of(
    script: Path, folder: Path, cases: Iterable[str], size: int = 2, timeout: str = "60"
) -> list[dict[str, Any]]:
    """Return what each process wrote for the cases, of a script that goes on after each."""
    done = _run(script, str(folder), ",".join(cases), size=size, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def check_end(script: Path, *arguments: str, error: str, size: int, timeout: str, seconds: float) -> None:
    """Check that all processes of a script end within `seconds` with an error that matches."""
    began = time.monotonic()
    done = _run(script, *arguments, size=size, timeout=timeout)
    assert done.returncode != 0
    assert re.search(expected(error, size), " ".join(done.stderr.split())), done.stderr[-3000:]
    assert time.monotonic() - began < seconds
