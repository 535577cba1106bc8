"""The conformance kit over the plugin: its placement alone, as a chip for a known framework has it, and the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import abacus
import numpy as np
import pytest
from anyaccel_abacus.backend import AbacusBackend
from anyaccel_abacus.placement import AbacusPlacement

from anyaccel import Backend
from anyaccel_devtools.testing import BackendTests, Subject, suite


class TestPlacement(BackendTests):
    """Placement only: one class of the kit, which has to be told how to make a tensor and how to read one."""

    @pytest.fixture
    def backend(self) -> Backend:
        return AbacusPlacement()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        return lambda: abacus.Tensor([0.0])

    @pytest.fixture
    def from_numpy(self) -> Callable[[np.ndarray], Any]:
        return abacus.Tensor

    @pytest.fixture
    def to_numpy(self) -> Callable[[Any], np.ndarray]:
        return lambda tensor: tensor.values


class Abacus(Subject):
    """The whole backend: arrays go in and out by its own `from_host` and `to_host`, and there is a model to train."""

    @pytest.fixture
    def backend(self) -> Backend:
        return AbacusBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        return lambda: abacus.Tensor([0.0])

    @pytest.fixture
    def model(self) -> Callable[[], Any]:
        return lambda: abacus.Linear(4, 3)

    @pytest.fixture
    def float64_model(self) -> Callable[[], Any]:
        return lambda: abacus.Linear(4, 3, "float64")


globals().update(suite(Abacus))
