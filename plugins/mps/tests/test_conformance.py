"""The conformance kit: on the Apple GPU where there is one, and everywhere on the CPU in its place."""

from __future__ import annotations

import pytest
import torch

from anyaccel.testing import suite
from anyaccel_mps.conformance import MpsSubject

NO_MAC = "torch has no Apple GPU here (torch.backends.mps.is_available() is false); on a Mac this runs by itself"


class Mps(MpsSubject):
    """torch on mps:0, for real."""


class OnCpu(MpsSubject):
    """The backend's own code on torch's CPU: placement, checks and dry runs are real, Metal is not."""

    @pytest.fixture
    def backend(self, cpu_backend, metal):
        return cpu_backend


globals().update(suite(OnCpu, "OnCpu"))

if torch.backends.mps.is_available():
    globals().update(suite(Mps))
else:  # one line in the report, where the whole kit would be some 250

    @pytest.mark.skip(reason=NO_MAC)
    def test_the_whole_kit_on_an_apple_gpu() -> None:
        """Stands for the tests of the kit over mps:0."""
