"""The conformance kit: on the Apple GPU where there is one, and everywhere on the CPU in its place."""

from __future__ import annotations

import pytest
import torch
from sampling import sampled

from anyaccel_devtools.testing import suite
from anyaccel_mps.conformance import MpsSubject


class Mps(MpsSubject):
    """torch on mps:0, for real."""


class OnCpu(MpsSubject):
    """The backend's own code on torch's CPU: placement, checks and dry runs are real, Metal is not."""

    @pytest.fixture
    def backend(self, cpu_backend, metal):
        return cpu_backend


globals().update(sampled(suite(OnCpu, "OnCpu"), 6))  # most is torch's, as in the tests of its own plugin

if torch.backends.mps.is_available():
    globals().update(suite(Mps))
