"""The kit over a backend with no capability: its tests pass, and those of capabilities are skipped as not declared."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.plugin_testing import TinyBackend
from anyaccel_devtools.testing import Subject, suite


class Tiny(Subject):
    """One class of tensors on a CPU and two other devices, with all fixtures that cannot be derived."""

    @pytest.fixture
    def backend(self):
        return TinyBackend("tiny", ("cpu", "gpu:0", "gpu:1"))

    @pytest.fixture
    def new_tensor(self, backend):
        return backend.new

    @pytest.fixture
    def from_numpy(self, backend):
        return lambda array: backend.new(array)

    @pytest.fixture
    def to_numpy(self):
        return lambda cell: np.array(cell.value)


globals().update(suite(Tiny))
