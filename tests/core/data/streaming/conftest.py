"""Fixtures of tests of sources: a registry of core's own backend, and what a process holds open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from anyaccel import registry as registry_module
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry


@pytest.fixture
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The process's registry exchanged for one with the built-in backend, to which a test may register plugins."""
    registry = Registry(NumpyBackend, lambda: ())
    monkeypatch.setattr(registry_module, "_registry", [registry])
    return registry


@pytest.fixture
def held(tmp_path: Path) -> Callable[[], tuple[list[str], int]]:
    """Files of the test's folder that this process has open, and how many threads of ours there are."""

    def count() -> tuple[list[str], int]:
        links = Path("/proc/self/fd")
        if not links.is_dir():
            pytest.skip("open files are counted in /proc")
        result = []
        for link in links.iterdir():
            try:
                result.append(str(link.readlink()))
            except OSError:  # the handle by which the folder itself is read
                continue
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("anyaccel")]
        return [path for path in result if path.startswith(str(tmp_path))], len(ours)

    return count
