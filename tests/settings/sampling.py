"""Takes a part of the tests, the same in every run; ANYACCEL_TEST_FULL=1 takes all.

Of tests marked `sampled`, one in eight is run, and of those marked `sampled(n)` one in n, but at least one of each
function; `sampled(n, part)` takes another of the n parts, so that several distributions share the tests of one name.
Those marked `whole`, or parameters so marked, are left out.
With ANYACCEL_TEST_SHARED=1, as in the sessions `backend` of nox, each of those marked `shared` is run with one of the
frameworks.
ANYACCEL_TEST_PART=1/16 runs the second of sixteen parts of the long tests (long_tests.toml); in a plain `nox`, the
commit decides which.
ANYACCEL_TEST_SAMPLE=40 takes one in 40 of all tests, and opens one file in eight for it, as reading thousands of tests
takes longer than running a few; ANYACCEL_TEST_DRAW, any text, gives another part of the same size.
"""

from __future__ import annotations

import gc
import os
import tomllib
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))
OF_MARKED = 8
"""Of how many tests marked `sampled` one is run: most of them are the same for each kind of model."""
IS_SHARED = bool(os.environ.get("ANYACCEL_TEST_SHARED")) and not IS_FULL
FRAMEWORKS = ("torch", "jax", "tensorflow")
"""Among which the tests marked `shared` are dealt out, or among those that the mark names.

Each has a session, so that the check runs every test once.
"""
OF_ALL = int(os.environ.get("ANYACCEL_TEST_SAMPLE", "1"))
OF_FILES = 8 if OF_ALL >= 16 else 1
"""Of how many files one is opened; of its tests more are run then."""
DRAW = os.environ.get("ANYACCEL_TEST_DRAW", "")
PART = os.environ.get("ANYACCEL_TEST_PART", "")
LONG: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("long_tests.toml").read_text("utf-8"))
"""Files whose tests share a long setup, and single functions."""


def pytest_report_header() -> str | None:
    """Say which part of the long tests is run."""
    return f"long tests: part {PART}, see tests/settings/long_tests.toml" if PART and not IS_FULL else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files of tests that are not in the sample."""
    is_left_out = collection_path.match("test_*.py") and number_of(collection_path.name) % OF_FILES
    return True if is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not in the sample."""
    chosen = {item for item in (*filter(is_chosen, items), *first_of_each(items)) if is_of_part(item)}
    left_out = [item for item in items if item not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in chosen]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let a run succeed if the part has none of its tests."""
    if PART and not IS_FULL and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def first_of_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """One test of each function that is marked `sampled(n)` of which else none would be run."""
    groups: dict[Any, list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and len(mark.args) == 1 and is_left_to_the_sample(item):
            groups.setdefault((item.parent, getattr(item, "originalname", item.name)), []).append(item)
    return [
        min(group, key=lambda item: number_of(item.name)) for group in groups.values() if not any(map(is_chosen, group))
    ]


def is_left_to_the_sample(item: Any) -> bool:
    """Whether nothing but a mark `sampled` may leave a test out."""
    return not item.get_closest_marker("whole") and is_of_sample(item) and is_of_framework(item)


def is_chosen(item: Any) -> bool:
    """Whether a test is in the sample, which is the same in every run."""
    return is_of_sample(item) and is_marked_to_run(item) and is_of_framework(item)


def is_of_sample(item: Any) -> bool:
    """Whether a test is in the sample of all tests."""
    return number_of(item.nodeid.rpartition("/")[2]) % (OF_ALL // OF_FILES) == 0


def is_marked_to_run(item: Any) -> bool:
    """Whether a test is marked neither `whole` nor `sampled`, or is in the part of the latter that is run."""
    mark = item.get_closest_marker("sampled")
    if IS_FULL:
        return True
    if item.get_closest_marker("whole"):
        return False
    if not mark:
        return True
    count, part = (*mark.args, *(OF_MARKED, 0)[len(mark.args) :])
    return number_of(item.name if mark.args else item.nodeid.rpartition("/")[2]) % count == part


def is_of_framework(item: Any) -> bool:
    """Whether a test is none that is marked `shared`, or is dealt to its framework."""
    shared = item.get_closest_marker("shared")
    call = getattr(item, "callspec", None)
    if not IS_SHARED or not shared or call is None or "framework" not in call.params:
        return True
    framework, frameworks = call.params["framework"], shared.args or FRAMEWORKS
    others = f"{item.originalname}[{call.id.replace(framework, '', 1)}]"  # the same whatever the framework
    return framework not in FRAMEWORKS or frameworks[number_of(others) % len(frameworks)] == framework


def is_of_part(item: pytest.Item) -> bool:
    """Whether a test is not long, or is in the part of the long ones that is run."""
    if not PART or IS_FULL:
        return True
    file, (function, _, parameters) = item.nodeid.partition("::")[0], item.nodeid.partition("[")
    part, count = map(int, PART.split("/"))
    # Dealt out in turns, so that no part has many of one session: some take a minute.
    if file in LONG["files"]:
        return LONG["files"].index(file) % count == part
    if function in LONG["functions"]:
        return (LONG["functions"].index(function) + crc32(parameters.encode())) % count == part
    return True


def sampled(suite: dict[str, type], count: int, part: int | None = None) -> dict[str, type]:
    """Classes of tests, of which one test in `count` is run: those of this part, or of each class those of another."""
    parts = {name: number_of(name) % count if part is None else part for name in suite}
    return {name: pytest.mark.sampled(count, parts[name])(tests) for name, tests in suite.items()}


def number_of(name: str) -> int:
    """A number that a name always has, by which it is drawn."""
    return crc32(f"{DRAW}{name}".encode())


def pytest_collection_finish() -> None:
    """Set aside what was imported: a full collection, of which many tests ask, need not walk through frameworks."""
    gc.collect()
    gc.freeze()
