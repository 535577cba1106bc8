"""Whether modules write to their inputs, and their image layout."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from anyaccel.segment import TensorSpec
from anyaccel_torch import SequentialCNN, TorchBackend

ROW = [TensorSpec((4,), "float32")]
IMAGE = [TensorSpec((3, 6, 6), "float32")]


class InPlace(nn.Module):
    """Writes through a function, which no attribute shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(F.relu_(x))
        return result


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(4, 4), False),
        (nn.ReLU(inplace=True), True),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), True),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU(inplace=True)), False),
        (nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(4, 2)), True),
        (InPlace(), True),
    ],
)
def test_mutates_inputs_is_found_by_running(model: nn.Module, expected: bool) -> None:
    assert TorchBackend().mutates_inputs(model, ROW) is expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Conv2d(3, 4, 3), ("channels_first", "channels_first")),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), ("channels_first", "channels_first")),
        (nn.Sequential(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), nn.Flatten()), ("channels_first", "")),
        (nn.Sequential(nn.Flatten(), nn.Linear(108, 2)), ("", "")),
        (SequentialCNN((2,)), ("channels_first", "")),
        (InPlace(), ("", "")),
        (nn.Sequential(nn.ReLU()), ("", "")),
    ],
)
def test_data_format_is_known_of_plain_sequences(model: nn.Module, expected: tuple[str, str]) -> None:
    assert TorchBackend().data_format(model) == expected
