"""Where the documentation stands, and the site that is built of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one

from building import build  # noqa: E402


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site: that of ANYACCEL_TEST_SITE, as the docs session sets it, or one built now."""
    if built := os.environ.get("ANYACCEL_TEST_SITE"):
        return Path(built)
    return build(ROOT / "docs", tmp_path_factory.mktemp("site"))
