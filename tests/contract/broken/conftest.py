"""Selects what the kit runs over the wrong backends: every test over each would take too long."""

from __future__ import annotations

import os
from typing import Any
from zlib import crc32

import pytest

from .faults import FAULTS

SHARE = 1 if os.environ.get("ANYACCEL_TEST_FULL") else 12
"""Of how many tests of other capabilities one is run over a wrong backend; which one depends on the backend."""


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[pytest.Item] | None:
    """Leave out a test before its parameters are multiplied; None leaves the decision to pytest."""
    fault = getattr(getattr(collector, "cls", None), "fault", "")
    if not fault or not name.startswith("test_"):
        return None
    if collector.cls.capability == FAULTS[fault].capability:
        return None if name == FAULTS[fault].test.partition("[")[0] else []
    return None if crc32(f"{fault}.{name}".encode()) % SHARE == 0 else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the test that a fault must fail, and of other capabilities each test with one of its parameters."""
    seen: set[tuple[Any, str]] = set()
    kept = []
    for item in items:
        name = getattr(item.cls, "fault", "")
        if not name or is_selected(item, FAULTS[name].capability, FAULTS[name].test, seen):
            kept.append(item)
    items[:] = kept


def is_selected(item: pytest.Item, capability: str, test: str, seen: set[tuple[Any, str]]) -> bool:
    """Whether to run a test over a fault of this capability that `test` must detect."""
    if item.cls.capability == capability:
        return item.name == test
    key = (item.cls, item.originalname)
    is_new = key not in seen
    seen.add(key)
    return is_new and item.originalname != "test_making_it_imports_no_framework"
