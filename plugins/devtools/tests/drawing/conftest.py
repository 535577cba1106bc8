"""Fixtures of tests of drawings."""

from __future__ import annotations

import pytest
from graph_fixtures import mlp as mlp
from graph_fixtures import parts as parts
from graph_fixtures import sims as sims
from graph_fixtures import table as table

from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry


@pytest.fixture(autouse=True)
def _numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed."""
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])
