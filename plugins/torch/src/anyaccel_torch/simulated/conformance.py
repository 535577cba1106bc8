"""The conformance subject of simulated devices; needs ANYACCEL_TORCH_SIMULATE=2 in its process."""

from __future__ import annotations

import pytest

from anyaccel.backend import Backend
from anyaccel_torch.conformance import TorchSubject
from anyaccel_torch.simulated.backend import SimulatedBackend


class SimulatedSubject(TorchSubject):
    """torch on sim:0, with sim:1 as the other device."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend that serves sim."""
        return SimulatedBackend()
