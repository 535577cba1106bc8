"""What the conformance kit is told about JAX; imported by `anyaccel conform jax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from anyaccel.backend import Backend
from anyaccel.testing import Subject
from anyaccel_jax.backend import JaxBackend


class JaxSubject(Subject):
    """JAX on the best device of this machine, with the models that every framework has."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Serves gpu, tpu and cpu."""
        return JaxBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Where the framework's own default says."""
        return lambda: jnp.zeros(3)
