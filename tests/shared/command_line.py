"""Fixtures that run the command line: in this process, in a child process, and in a terminal."""

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
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No installed plugins, and no settings of the terminal."""
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS", "ANYACCEL_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANYACCEL_PLUGINS", "")


@pytest.fixture
def call() -> Callable[..., Result]:
    """`call("devices", "--json")`: runs a command in this process; unexpected exceptions are raised."""
    # Click 8.1 mixes both outputs unless it is told not to, and 8.2 cannot be told.
    settings = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}

    def run(*arguments: str) -> Result:
        return CliRunner(**settings).invoke(group, arguments, prog_name="anyaccel", catch_exceptions=False)

    return run


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a child process: these sources, and modules written to `tmp_path`."""

    def make(**further: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), SOURCES]), **further}

    return make


@pytest.fixture
def spawn(environment: Callable[..., dict[str, str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`spawn("devices", "--json", ANYACCEL_SIMULATE="1")`: runs `python -m anyaccel` in a child process, piped."""

    def run(*arguments: str, cwd: Path | None = None, **further: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "anyaccel", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment(**further), cwd=cwd, timeout=100, check=False
        )

    return run


@pytest.fixture
def python(environment: Callable[..., dict[str, str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python(source, "devices", cwd=folder)`: runs Python source with arguments in a process of its own."""

    def run(source: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", source, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=100, check=False
        )

    return run


@pytest.fixture
def terminal(environment: Callable[..., dict[str, str]]) -> Callable[..., str]:
    """`terminal("plugins", NO_COLOR="1")`: output and errors of a command that runs in a pseudo-terminal."""
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")

    def run(*arguments: str, **further: str) -> str:
        parent, child_end = pty.openpty()
        settings = environment(TERM="xterm-256color", COLUMNS="120", **further)
        command = [sys.executable, "-P", "-m", "anyaccel", *arguments]
        with subprocess.Popen(
            command, stdout=child_end, stderr=child_end, stdin=subprocess.DEVNULL, env=settings
        ) as child:
            os.close(child_end)
            output = b""
            while True:
                try:
                    part = os.read(parent, 65536)
                except OSError:  # on Linux the end of a pseudo-terminal
                    break
                if not part:
                    break
                output += part
            child.wait(timeout=100)
        os.close(parent)
        return output.decode()

    return run
