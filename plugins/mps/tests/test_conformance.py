"""The conformance kit: on the Apple GPU where there is one, and everywhere on the CPU in its place."""

from __future__ import annotations

import pytest
import torch

from anyaccel.testing import Subject, suite
from anyaccel_mps import MpsBackend

NO_MAC = "torch has no Apple GPU here (torch.backends.mps.is_available() is false); on a Mac this runs by itself"


class Torch(Subject):
    """What is alike in both."""

    @pytest.fixture
    def new_tensor(self):
        return lambda: torch.zeros(3)

    @pytest.fixture
    def tensor(self):
        return lambda array: torch.from_numpy(array.copy())

    @pytest.fixture
    def read(self):
        return lambda tensor: tensor.detach().cpu().numpy()

    @pytest.fixture
    def model(self):
        return lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    @pytest.fixture
    def random_model(self):
        return lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))

    @pytest.fixture
    def buffered_model(self):
        return lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))

    @pytest.fixture
    def writing_model(self):
        return lambda: torch.nn.Sequential(torch.nn.ELU(inplace=True), torch.nn.Linear(4, 3))


class Mps(Torch):
    """torch on mps:0, for real."""

    @pytest.fixture
    def backend(self):
        return MpsBackend()


class OnCpu(Torch):
    """The backend's own code on torch's CPU: placement, refusals and rehearsals are real, Metal is not."""

    @pytest.fixture
    def backend(self, pretend, metal):
        return pretend


globals().update(suite(OnCpu, "OnCpu"))

if torch.backends.mps.is_available():
    globals().update(suite(Mps))
else:  # one line in the report, where the whole kit would be some 250

    @pytest.mark.skip(reason=NO_MAC)
    def test_the_whole_kit_on_an_apple_gpu() -> None:
        """Stands for the tests of the kit over mps:0."""
