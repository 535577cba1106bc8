"""A child process with a time limit, even if it hangs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

_GRACE = 0.5  # seconds in which a process ends that is killed
_left: list[subprocess.Popen[str]] = []  # held: Python warns of a process that is forgotten while it runs


def run_bounded(
    command: Sequence[str], patience: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input, and wait until it ends.

    A process that hangs inside a driver does not end when it is killed, and `subprocess.run` would wait for it forever.
    Such a process is left behind.

    Args:
        command: The program and its arguments.
        patience: Time limit in seconds.
        environment: Variables; by default those of this process.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
        OSError: the program does not exist.
    """
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    child = subprocess.Popen(
        command, stdin=none, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment
    )
    try:
        out, err = child.communicate(timeout=patience)
    except BaseException:
        child.kill()
        try:
            child.communicate(timeout=_GRACE)
        except (subprocess.TimeoutExpired, ValueError):
            _left.append(child)
            for stream in filter(None, (child.stdout, child.stderr)):
                with contextlib.suppress(OSError):
                    stream.close()
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)
