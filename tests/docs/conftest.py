"""The repository and the built site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .building import build

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site: ANYACCEL_TEST_SITE, which the docs session sets, or one that is built now."""
    if built := os.environ.get("ANYACCEL_TEST_SITE"):
        return Path(built)
    return build(ROOT / "docs", tmp_path_factory.mktemp("site"))
