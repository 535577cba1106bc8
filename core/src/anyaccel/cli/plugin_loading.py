"""Load the plugins for a command, except those that hang or crash on import: a child process tries first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

from anyaccel.cli.import_check import MARK
from anyaccel.errors import PluginError
from anyaccel.plugin_loader import BUILT_IN, PATIENCE, SWITCH, Plugin, installed, plugin_of, wanted
from anyaccel.registry import registry

TIMEOUT = 60.0  # seconds for each plugin


def load_plugins(timeout: float = TIMEOUT) -> tuple[Plugin, ...]:
    """Load the plugins of this process; returns those that are left out because importing them hangs or crashes.

    Args:
        timeout: seconds for the import of each plugin.
    """
    allowed = wanted()
    entries = {entry.name: entry for entry in installed() if allowed is None or entry.name in allowed}
    broken: list[Plugin] = []
    while entries and (failure := _first_failure(sorted(entries), timeout)):
        name, problem, ended = failure
        plugin = plugin_of(entries.pop(name))
        broken.append(replace(plugin, error=PluginError(problem)) if ended else replace(plugin, delays=[problem]))
    if broken:
        with _allowed_plugins(sorted(entries)):
            registry().load()
    registry().load()
    return tuple(broken)


def child_environment() -> dict[str, str]:
    """Return the environment of a child process that loads the same plugins as this one."""
    names = (plugin.name for plugin in registry().plugins if plugin.name != BUILT_IN)
    return {**os.environ, SWITCH: ",".join(dict.fromkeys(names))}


@contextmanager
def _allowed_plugins(names: Sequence[str]) -> Iterator[None]:
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = ",".join(names)
    try:
        yield
    finally:
        del os.environ[SWITCH]
        if before is not None:
            os.environ[SWITCH] = before


def _first_failure(names: Sequence[str], timeout: float) -> tuple[str, str, bool] | None:
    """Load plugins in a child process; None if all load.

    Otherwise the plugin that is slow, hangs or ends the process, the problem, and whether the process has ended.
    """
    # -P: a file of the working directory must not stand in for a module.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "anyaccel.cli.import_check"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env={**os.environ, SWITCH: ",".join(names)},
    )
    try:
        assert child.stdout is not None
        name, ended = _follow(child.stdout, timeout)
        if not name:
            return None
        how = f"ends the process with status {child.wait()}" if ended else f"did not end within {timeout:g} s"
        return name, f"its import {how}", ended
    finally:
        child.kill()
        child.wait()


def _follow(output: IO[str], timeout: float) -> tuple[str, bool]:
    """Return the plugin being imported when the output ended (True) or nothing came any more (False); `""` if all
    loaded.
    """
    names: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=_read_names, args=(output, names), daemon=True).start()
    current = ""
    while True:
        try:
            name = _next_name(names, current, timeout)
        except Empty:
            return current, False
        if not name:
            return (current, True) if name is None else ("", True)
        current = name


def _read_names(output: IO[str], names: SimpleQueue[str | None]) -> None:
    with output:
        for line in output:
            if line.startswith(MARK):
                names.put(line.removeprefix(MARK).strip())
    names.put(None)


def _next_name(names: SimpleQueue[str | None], current: str, timeout: float) -> str | None:
    if not current:  # Python itself starts, which is not the fault of a plugin
        return names.get(timeout=max(timeout, TIMEOUT))
    try:
        return names.get(timeout=min(PATIENCE, timeout))
    except Empty:
        sys.stderr.write(f"waiting for plugin {current} (import)\n")
        return names.get(timeout=max(timeout - PATIENCE, 0.01))
