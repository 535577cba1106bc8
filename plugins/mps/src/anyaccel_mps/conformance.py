"""What the conformance kit is told about the Apple GPU; imported by tests and by `anyaccel conform mps`."""

from __future__ import annotations

import pytest

from anyaccel.backend import Backend
from anyaccel_mps.backend import MpsBackend
from anyaccel_torch.conformance import TorchSubject


class MpsSubject(TorchSubject):
    """torch on mps:0."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Serves mps."""
        return MpsBackend()
