"""Where the sources are, for tests that read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository. Absent only where wheels are tested, and only that run may skip what needs it."""
    if not (ROOT / "core/src").is_dir():
        if "ANYACCEL_TEST_WHEELS" in os.environ:
            pytest.skip("wheels are tested without the sources")
        pytest.fail(f"there are no sources in {ROOT}")
    return ROOT


@pytest.fixture(scope="session")
def core_sources(root: Path) -> dict[str, str]:
    """Every module of core by its path inside the package: `data/table.py` and its text."""
    package = root / "core/src/anyaccel"
    return {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))
    }


@pytest.fixture(scope="session")
def plugin_sources(root: Path) -> dict[str, str]:
    """Every module of every plugin by its path in the repository, the example plugins of the docs among them."""
    found = [*root.glob("plugins/*/src/**/*.py"), *root.glob("docs/examples/*/src/**/*.py")]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(found)}
