"""NumpySubject: the Subject that the conformance kit uses to test the NumPy backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Sequential, zeros
from anyaccel_devtools.testing import Subject


class NumpySubject(Subject):
    """Core's own NumPy backend."""

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Return an array made without naming a device."""
        return lambda: zeros((3,))

    @pytest.fixture
    def buffered_model(self) -> Callable[[], Any]:
        """Return a model with batch normalization."""
        return lambda: Sequential(Dense(5), BatchNorm(), Dense(3))

    @pytest.fixture
    def tied_model(self) -> Callable[[], Any]:
        """Return a model that calls one layer twice."""

        def make() -> Sequential:
            tied = Dense(4)
            return Sequential(tied, Activation("tanh"), tied, Dense(3))

        return make

    @pytest.fixture
    def models_that_share(self) -> Callable[[], tuple[Any, Any]]:
        """Return two models with one layer in common."""

        def make() -> tuple[Sequential, Sequential]:
            layer = Dense(5)
            return Sequential(layer, Dense(3)), Sequential(layer, Activation("tanh"), Dense(3))

        return make

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """Return a loss with its gradient, because NumPy does not differentiate."""
        return squared_error

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """Return an activation."""
        return lambda: Activation("tanh")


def squared_error(outputs: Any, targets: Any) -> tuple[Any, int, list[Any]]:
    """The mean squared error of each row summed over the rows, their number, and the gradients of the sum."""
    difference = outputs - targets
    return (difference**2).sum() / outputs.shape[1], len(outputs), [2 * difference / outputs.shape[1], None]
