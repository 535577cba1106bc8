"""Processes: start a script once for each replica, end all when one fails, and start them again if that is asked
for.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05
_ERROR_SECONDS = 1.0
_PORTS = 3
_FIRST_PORT, _LAST_PORT = 20_000, 32_000  # systems assign ports from 32,768 (Linux) or 49,152 to connections


def run_replicas(
    command: Sequence[str],
    n_replicas: int,
    environment: Mapping[str, str] | None = None,
    *,
    max_restarts: int = 0,
    variables: Mapping[str, str] | None = None,
    printed: Callable[[str], object] | None = None,
) -> int:
    """Run a command in `n_replicas` processes on this machine, and wait for all.

    Each gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as from torchrun, and, if
    OMP_NUM_THREADS is not set, its part of the cores. When one fails, the others are ended: a second later by
    SIGTERM, so that they can print their errors, and 10 seconds later by force. SIGTERM and Ctrl-C end all in the same
    way.

    Args:
        command: Program and arguments.
        n_replicas: Number of processes.
        environment: Environment of each; by default that of this process.
        max_restarts: How often all are restarted from scratch when one has failed.
        variables: More variables to set.
        printed: Function that receives each line that a process prints; this process then prints it, too, because a
            notebook shows no output of others. By default they use its standard output and error.

    Returns:
        The exit status: 0, or that of the process that failed first; 128 + signal if a signal ended it.
    """
    shared = dict(os.environ if environment is None else environment) | dict(variables or {})
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n_replicas)))
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _interrupt) if in_main_thread else None
    try:
        for attempt in range(max_restarts + 1):
            status = _attempt(command, n_replicas, shared, max_restarts - attempt, printed)
            if status == 0:
                break
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


def _attempt(
    command: Sequence[str],
    n_replicas: int,
    shared: Mapping[str, str],
    attempts_left: int,
    printed: Callable[[str], object] | None,
) -> int:
    """Start all, wait, and end those that are left."""
    of_all = {"WORLD_SIZE": str(n_replicas), "LOCAL_WORLD_SIZE": str(n_replicas)}
    of_all |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    output: dict[str, Any] = {} if printed is None else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    try:
        for rank in range(n_replicas):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(list(command), env={**shared, **of_all, **of_rank}, **output))
            if printed is not None:
                readers.append(_reader(processes[-1], printed))
        then = "all are restarted" if attempts_left else "the others are stopped too"
        while True:
            codes = [process.poll() for process in processes]
            failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
            if failed is not None:
                rank, code = failed
                how = f"exit status {code}" if code > 0 else f"signal {-code}"
                with suppress(OSError, ValueError):  # the status tells it as well
                    print(f"anyaccel run: replica {rank} ended with {how}; {then}", file=sys.stderr)
                until = time.monotonic() + _ERROR_SECONDS  # the others may print an error that says more
                while time.monotonic() < until and any(process.poll() is None for process in processes):
                    time.sleep(_POLL_SECONDS)
                return code if code > 0 else 128 - code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(_POLL_SECONDS)
    finally:
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in readers:
            reader.join(_GRACE_SECONDS)


def _reader(process: subprocess.Popen[bytes], printed: Callable[[str], object]) -> threading.Thread:
    """Return a thread that prints the output of a process, line by line."""

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace")
                with suppress(OSError, ValueError):  # full or closed: the process must not wait for a reader for ever
                    print(text, end="", flush=True)
                printed(text)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def free_port() -> int:
    """Return a free port followed by more free ports, which some frameworks use to meet.

    It is below the ports that systems assign to connections: another process's connection could take one of those
    while the frameworks are imported.
    """
    while True:
        port = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT)
        with suppress(OSError), ExitStack() as stack:  # taken
            for further in range(_PORTS):
                stack.enter_context(socket.socket()).bind(("", port + further))
            return port
