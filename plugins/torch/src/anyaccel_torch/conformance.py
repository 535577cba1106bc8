"""The conformance subject of torch; imported by tests and by `anyaccel conform torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anyaccel.backend import Backend
from anyaccel_devtools.testing import Subject
from anyaccel_torch import keras
from anyaccel_torch.backend import TorchBackend

Make = Callable[[], Any]


class TorchSubject(Subject):
    """torch on the best device of this machine, with ordinary modules."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend on gpu, xpu and cpu."""
        return TorchBackend()

    @pytest.fixture
    def new_tensor(self) -> Make:
        """Create a tensor on torch's default device."""
        return lambda: torch.zeros(3)

    @pytest.fixture
    def from_numpy(self) -> Callable[[np.ndarray], Any]:
        """Convert through torch itself."""
        return lambda array: torch.from_numpy(array.copy())

    @pytest.fixture
    def to_numpy(self) -> Callable[[Any], np.ndarray]:
        """Convert through torch itself."""
        return lambda tensor: np.asarray(tensor.detach().cpu().numpy())

    @pytest.fixture
    def model(self) -> Make:
        """Return linear and tanh layers."""
        return lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    @pytest.fixture
    def random_model(self) -> Make:
        """Return a model with dropout."""
        return lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    @pytest.fixture
    def buffered_model(self) -> Make:
        """Return a model with batch normalization."""
        return lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    @pytest.fixture
    def dropout_free_model(self) -> Make:
        """Return the random model at a rate of 0."""
        return lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 3))

    @pytest.fixture
    def tied_model(self) -> Make:
        """Return a model with one layer in two places, and one weight in two layers."""

        def make() -> nn.Module:
            tied, other = nn.Linear(4, 4), nn.Linear(4, 4)
            other.weight = tied.weight
            return nn.Sequential(tied, nn.Tanh(), tied, nn.Tanh(), other, nn.Linear(4, 3))

        return make

    @pytest.fixture
    def models_that_share(self) -> Callable[[], tuple[nn.Module, nn.Module]]:
        """Return two modules with one layer in common."""

        def make() -> tuple[nn.Module, nn.Module]:
            layer = nn.Linear(4, 5)
            return nn.Sequential(layer, nn.Linear(5, 3)), nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 3))

        return make

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """Return a loss of torch."""
        return nn.functional.mse_loss

    @pytest.fixture
    def parameter_free_model(self) -> Make:
        """Return tanh."""
        return nn.Tanh

    @pytest.fixture
    def mutating_model(self) -> Make:
        """Return a model with an activation that writes to its input."""
        return lambda: nn.Sequential(nn.ELU(inplace=True), nn.Linear(4, 3))

    @pytest.fixture
    def keyword_model(self) -> Make:
        """Return a model that takes two tensors and returns a dict of tensors."""
        return Difference

    @pytest.fixture
    def time_first_model(self) -> Make:
        """Time first, as recurrent layers of torch are by default."""
        return RunningTotal

    @pytest.fixture
    def custom_step(self) -> Callable[..., Any]:
        """Return a loop body of torch."""
        return train_step

    @pytest.fixture
    def random_state(self) -> Make:
        """Return the state of torch's generators, on the CPU and on GPUs."""
        return lambda: [state.numpy() for state in (torch.get_rng_state(), *torch.cuda.get_rng_state_all())]


class Difference(nn.Module):
    """The keyword_model."""

    def forward(self, minuend: torch.Tensor, subtrahend: torch.Tensor) -> dict[str, Any]:
        """Return the difference, as `Subject.keyword_model` requires."""
        return {"difference": minuend - subtrahend, "parts": {"first": minuend}}


class RunningTotal(nn.Module):
    """The time_first_model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return running totals, as `Subject.time_first_model` requires."""
        return x.cumsum(0)


def train_step(models: Any, batch: Any, optimizers: Any) -> dict[str, torch.Tensor]:
    """Run a step for `Subject.custom_step`; Keras layers do not read `module.training`, and receive the mode."""
    net = models["node"]
    optimizers["node"].zero_grad()
    outputs = net(batch["x"], training=True) if keras.library().is_layer(net) else net(batch["x"])
    loss = nn.functional.mse_loss(outputs, batch["t"])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizers["node"].step()
    return {"loss": loss}
