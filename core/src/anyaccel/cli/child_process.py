"""A module of anyaccel in its own process. Imports little, so that commands that only wait for one start fast."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from anyaccel.machine.bounded_process import run_bounded


def run_child(
    module: str, *arguments: str, timeout: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module of anyaccel in its own process, and wait until it ends.

    Args:
        module: its full name.
        arguments: of the command line.
        timeout: seconds.
        environment: variables; by default those of this process.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    # -P: a file of the working directory must not stand in for a module.
    return run_bounded([sys.executable, "-P", "-m", module, *arguments], timeout, environment)


def last_answer(printed: str, keys: Collection[str]) -> dict[str, Any] | None:
    """Return the last line that is a JSON object with these keys, ignoring other output; or None."""
    values = map(_parse, reversed(printed.splitlines()))
    return next((value for value in values if isinstance(value, dict) and value.keys() >= set(keys)), None)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
