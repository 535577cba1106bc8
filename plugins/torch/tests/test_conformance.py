"""The conformance kit over torch."""

from __future__ import annotations

import pytest
import torch

from anyaccel.testing import Subject, suite
from anyaccel_torch import TorchBackend


class Torch(Subject):
    """torch on the best device of this machine."""

    @pytest.fixture
    def backend(self):
        return TorchBackend()

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


class Standard(Torch):
    """The same with SequentialMLP, which every framework has."""

    model = Subject.model
    random_model = Subject.random_model


globals().update(suite(Torch) | suite(Standard, "Standard"))
