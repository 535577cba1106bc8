"""The subject of the conformance kit for JAX; imported by `anyaccel conform jax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from anyaccel.backend import Backend
from anyaccel.testing import Subject
from anyaccel_jax import Function
from anyaccel_jax.backend import JaxBackend


class JaxSubject(Subject):
    """JAX on the best device of this machine, with the models that every framework has."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Serves gpu, tpu and cpu."""
        return JaxBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """On the framework's default device."""
        return lambda: jnp.zeros(3)

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """A pure function without parameters."""
        return lambda: Function(lambda parameters, x: jnp.tanh(x), {})
