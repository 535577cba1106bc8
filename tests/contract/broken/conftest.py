"""Selects what the kit runs over the wrong backends: every test over each would take too long."""

from __future__ import annotations

from typing import Any

import pytest

from .faults import FAULTS


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
