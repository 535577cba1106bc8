"""The conformance kit over two simulated torch devices.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import os

import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

from anyaccel_devtools.testing import suite
from anyaccel_torch.simulated.conformance import SimulatedSubject


class Simulated(SimulatedSubject):
    """torch on sim:0 and sim:1."""


globals().update(suite(Simulated))
