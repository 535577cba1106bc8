"""MpsSubject: the conformance kit's subject for MPS; used by the tests and by `anyaccel conform mps`."""

from __future__ import annotations

import pytest

from anyaccel.backend import Backend
from anyaccel_mps.backend import MpsBackend
from anyaccel_torch.conformance import TorchSubject


class MpsSubject(TorchSubject):
    """PyTorch on mps:0."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend for mps."""
        return MpsBackend()
