"""What the conformance kit is told about MLX; imported by tests and by `anyaccel conform mlx`, by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from anyaccel import Backend
from anyaccel_devtools.testing import Subject
from anyaccel_mlx.backend import MlxBackend

Make = Callable[[], Any]


class MlxSubject(Subject):
    """MLX on the best device of this machine, with its own layers."""

    @pytest.fixture(autouse=True)
    def seeded(self) -> None:
        """The same weights in every run: layers draw them from MLX's own state."""
        mx.random.seed(1)

    @pytest.fixture
    def backend(self) -> Backend:
        """Serves mps and cpu."""
        return MlxBackend()

    @pytest.fixture
    def new_tensor(self) -> Make:
        """Where MLX's default device says."""
        return lambda: mx.zeros(3)

    @pytest.fixture
    def model(self) -> Make:
        """Linear and tanh."""
        return lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    @pytest.fixture
    def float64_model(self, model: Make) -> Make:
        """In float32: MLX has float64 on the CPU, but its exp is no better there."""
        return model

    @pytest.fixture
    def random_model(self) -> Make:
        """With dropout."""
        return lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    @pytest.fixture
    def buffered_model(self) -> Make:
        """With batch normalisation."""
        return lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm(5), nn.Linear(5, 3))

    @pytest.fixture
    def dropout_free_model(self) -> Make:
        """The random model at a rate of 0."""
        return lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 3))

    @pytest.fixture
    def tied_model(self) -> Make:
        """One layer in two places."""

        def make() -> nn.Module:
            tied = nn.Linear(4, 4)
            return nn.Sequential(tied, nn.Tanh(), tied, nn.Linear(4, 3))

        return make

    @pytest.fixture
    def parameter_free_model(self) -> Make:
        """Tanh."""
        return nn.Tanh

    @pytest.fixture
    def random_state(self) -> Make:
        """Of the state from which all layers draw."""
        return lambda: [np.array(key) for key in mx.random.state]
