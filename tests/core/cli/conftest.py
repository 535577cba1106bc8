"""What tests of the command line share: running it in this process, in one of its own, and in a terminal."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import anyaccel
from anyaccel.cli.main import group
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry

SOURCES = str(Path(anyaccel.__file__).parents[1])


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin that happens to be installed, and no terminal's settings."""
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS", "ANYACCEL_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANYACCEL_PLUGINS", "")


@pytest.fixture
def call() -> Callable[..., Result]:
    """`call("devices", "--json")`: the command in this process; errors that are no answer of it are raised."""
    # Click 8.1 mixes both outputs unless it is told not to, and 8.2 cannot be told.
    apart = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}

    def run(*arguments: str) -> Result:
        return CliRunner(**apart).invoke(group, arguments, prog_name="anyaccel", catch_exceptions=False)

    return run


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a process of its own: these sources, what was written to `tmp_path`, and nothing else."""

    def make(**further: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), SOURCES]), **further}

    return make


@pytest.fixture
def spawn(environment: Callable[..., dict[str, str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`spawn("devices", "--json", ANYACCEL_SIMULATE="1")`: `python -m anyaccel` as a process, piped."""

    def run(*arguments: str, cwd: Path | None = None, **further: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "anyaccel", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment(**further), cwd=cwd, timeout=100, check=False
        )

    return run


@pytest.fixture
def terminal(environment: Callable[..., dict[str, str]]) -> Callable[..., str]:
    """`terminal("plugins", NO_COLOR="1")`: what a terminal is sent; standard error goes there too."""
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")

    def run(*arguments: str, **further: str) -> str:
        ours, theirs = pty.openpty()
        settings = environment(TERM="xterm-256color", COLUMNS="120", **further)
        command = [sys.executable, "-P", "-m", "anyaccel", *arguments]
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=settings) as child:
            os.close(theirs)
            sent = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # on Linux the end of a pseudo-terminal
                    break
                if not part:
                    break
                sent += part
            child.wait(timeout=100)
        os.close(ours)
        return sent.decode()

    return run
