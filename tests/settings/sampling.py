"""Takes a part of the tests, the same in every run; ANYACCEL_TEST_FULL=1 takes all.

Of tests marked `sampled`, one in eight is run. With ANYACCEL_TEST_SHARED=1, as in the sessions `backend` of nox, each
of those marked `shared` is run with one of the frameworks.
ANYACCEL_TEST_SAMPLE=40 takes one in 40 of all tests, and opens one file in four for it, as reading thousands of tests
takes longer than running a few; ANYACCEL_TEST_DRAW, any text, gives another part of the same size.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))
OF_MARKED = 1 if IS_FULL else 8
"""Of how many tests marked `sampled` one is run: most of them are the same for each kind of model."""
IS_SHARED = bool(os.environ.get("ANYACCEL_TEST_SHARED")) and not IS_FULL
FRAMEWORKS = ("torch", "jax", "tensorflow")
"""Among which the tests marked `shared` are dealt out, or among those that the mark names.

Each has a session, so that the check runs every test once.
"""
OF_ALL = int(os.environ.get("ANYACCEL_TEST_SAMPLE", "1"))
OF_FILES = 4 if OF_ALL >= 16 else 1
"""Of how many files one is opened; of its tests more are run then."""
DRAW = os.environ.get("ANYACCEL_TEST_DRAW", "")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files of tests that are not in the sample."""
    is_left_out = collection_path.match("test_*.py") and number_of(collection_path.name) % OF_FILES
    return True if is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not in the sample."""
    left_out = {item for item in items if not is_chosen(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def is_chosen(item: Any) -> bool:
    """Whether a test is in the sample, which is the same in every run."""
    number = number_of(item.nodeid.rpartition("/")[2])
    if number % (OF_ALL // OF_FILES) or (item.get_closest_marker("sampled") and number % OF_MARKED):
        return False
    shared = item.get_closest_marker("shared")
    if not IS_SHARED or not shared:
        return True
    call, frameworks = item.callspec, shared.args or FRAMEWORKS
    framework = call.params["framework"]
    others = f"{item.originalname}[{call.id.replace(framework, '', 1)}]"  # the same whatever the framework
    return framework not in FRAMEWORKS or frameworks[number_of(others) % len(frameworks)] == framework


def number_of(name: str) -> int:
    """A number that a name always has, by which it is drawn."""
    return crc32(f"{DRAW}{name}".encode())


def pytest_collection_finish() -> None:
    """Set aside what was imported: a full collection, of which many tests ask, need not walk through frameworks."""
    gc.collect()
    gc.freeze()
