"""Takes a part of the tests: one in five of those marked `sampled`, and one in ANYACCEL_TEST_SAMPLE of all."""

from __future__ import annotations

import os
from zlib import crc32

import pytest

OF_MARKED = 1 if os.environ.get("ANYACCEL_TEST_FULL") else 5
"""Of how many tests marked `sampled` one is run: most of them are the same for each kind of model."""
OF_ALL = int(os.environ.get("ANYACCEL_TEST_SAMPLE", "1"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in the sample."""
    left_out = {item for item in items if not is_chosen(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def is_chosen(item: pytest.Item) -> bool:
    """Whether a test is in the sample, which is the same in every run."""
    number = crc32(item.nodeid.rpartition("/")[2].encode())
    return number % OF_ALL == 0 and (not item.get_closest_marker("sampled") or number % OF_MARKED == 0)
