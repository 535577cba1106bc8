"""Fixtures: the NumPy backend and no plugin, simulated devices, small data, and a network in a quiet experiment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from phase_fixtures import data as data
from phase_fixtures import line as line
from phase_fixtures import numpy_only as numpy_only
from phase_fixtures import sims as sims
from phase_fixtures import table as table
from phase_fixtures import table_of as table_of

from anyaccel.experiment import Experiment


@pytest.fixture
def experiment() -> Callable[..., Experiment]:
    """`experiment(graph, callbacks=...)` is a quiet one."""
    return lambda graph, **settings: Experiment("e", graph, **{"progress": "none", **settings})
