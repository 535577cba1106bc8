"""The sources, for tests that read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository. Only the run that tests wheels has no sources, and skips tests that need them."""
    if not (ROOT / "core/src").is_dir():
        if "ANYACCEL_TEST_WHEELS" in os.environ:
            pytest.skip("wheels are tested without the sources")
        pytest.fail(f"there are no sources in {ROOT}")
    return ROOT


@pytest.fixture(scope="session")
def core_sources(root: Path) -> dict[str, str]:
    """The text of every module of core by its path in the package, such as `data/table.py`."""
    package = root / "core/src/anyaccel"
    return {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))
    }


@pytest.fixture(scope="session")
def plugin_sources(root: Path) -> dict[str, str]:
    """The text of every module of plugins and example plugins by its path in the repository."""
    paths = [*root.glob("plugins/*/src/**/*.py"), *root.glob("docs/examples/*/src/**/*.py")]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}
