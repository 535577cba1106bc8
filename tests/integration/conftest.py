"""Fixtures for tests over every framework that is installed here."""

from __future__ import annotations

import pytest

from anyaccel.backend import Compute
from anyaccel.registry import registry


def frameworks() -> list[str]:
    """Installed frameworks that compute and offer the common models, beside the reference."""
    found = registry()
    able = [name for name in found.frameworks if name != "numpy" and isinstance(found.find(name), Compute)]
    return [name for name in able if "SequentialMLP" in found.computing(name).models()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a `framework` over all of them; none at all is a failure of the session's set-up."""
    if "framework" in metafunc.fixturenames:
        names = frameworks()
        if not names:
            raise pytest.UsageError("tests/integration needs a plugin with its framework installed")
        metafunc.parametrize("framework", names)
