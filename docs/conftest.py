"""The documentation, run as tests.

The Python blocks of a Markdown file run in order, in one namespace and a temporary folder of their own; a block that
is not to run stands after `<!--- skip: next -->`. Each script of docs/examples/ runs in an interpreter of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

HERE = Path(__file__).parent


def enter(namespace: dict[str, Any]) -> None:
    """Give a document a folder of its own to write into, and a name as a script has one."""
    namespace["__name__"] = "__main__"
    namespace["_folder"] = (tempfile.TemporaryDirectory(), Path.cwd())
    os.chdir(namespace["_folder"][0].name)


def leave(namespace: dict[str, Any]) -> None:
    """Go back to where `enter` came from, remove the folder, and silence what was entered into the registry by hand."""
    from anyaccel.registry import registry

    by_hand = [plugin.name for plugin in registry().plugins if not plugin.distribution]
    for name in filter(registry().hooks.has_plugin, by_hand):
        registry().hooks.unregister(name=name)
    folder, before = namespace["_folder"]
    os.chdir(before)
    namespace.clear()
    folder.cleanup()


class Script(pytest.File):
    """One script of docs/examples/."""

    def collect(self) -> list[pytest.Item]:
        return [ScriptRun.from_parent(self, name="run")]


class ScriptRun(pytest.Item):
    """Run a script as a user does; a warning is an error, and what it prints is shown where it fails."""

    def runtest(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-W", "error", str(self.path)]
            answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if answer.returncode:
            pytest.fail(
                f"{self.path.name} ended with {answer.returncode}\n{answer.stdout}{answer.stderr}", pytrace=False
            )

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.path.name


class Documents:
    """Collects Markdown files: those of this folder, and every README, which stands where no conftest reaches it."""

    pytest_collect_file = staticmethod(
        Sybil(
            [PythonCodeBlockParser(), SkipParser()],
            path=str(HERE.parent),
            patterns=["*.md"],
            setup=enter,
            teardown=leave,
        ).pytest()
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Documents(), "documents")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".py" and file_path.parent == HERE / "examples":
        return Script.from_parent(parent, path=file_path)
    return None
