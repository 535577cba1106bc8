"""Takes a part of what the kit runs over a further kind of model, as most of it is the same for each kind."""

from __future__ import annotations

import os
from zlib import crc32

import hypothesis_profiles  # noqa: F401
import pytest

SHARE = 1 if os.environ.get("ANYACCEL_TEST_FULL") else 5
"""Of how many tests marked `sampled` one is run; which one depends on the kind of model."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in the sample."""
    left_out = [item for item in items if item.get_closest_marker("sampled") and not is_chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def is_chosen(item: pytest.Item) -> bool:
    """Whether a test is in the sample, which is the same in every run."""
    return crc32(item.nodeid.rpartition("/")[2].encode()) % SHARE == 0
