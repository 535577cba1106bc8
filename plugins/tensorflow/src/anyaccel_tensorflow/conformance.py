"""The subject of the conformance kit for TensorFlow; imported by `anyaccel conform tensorflow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from anyaccel.backend import Backend
from anyaccel.testing import Subject
from anyaccel_tensorflow.backend import TensorFlowBackend


class TensorFlowSubject(Subject):
    """TensorFlow on the best device of this machine, with the models that every framework has."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Serves gpu and cpu."""
        return TensorFlowBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """On the framework's default device."""
        return lambda: tf.zeros(3)
