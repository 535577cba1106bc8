"""Shared by the tests of the torch plugin: the backend, and a small segment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported, which some of these tests do

import pytest
import torch

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch.backend import TorchBackend

CPU = Device("cpu")


@pytest.fixture(scope="session")
def backend() -> TorchBackend:
    return TorchBackend()


@pytest.fixture(scope="session")
def segment_of() -> Callable[..., Segment]:
    """A segment `x -> node -> loss against y`; keywords change parts of it."""
    return make_segment


def make_segment(
    model: Any,
    *,
    optimizer: Optimizer | None = None,
    loss: Any = "mse",
    weight: float = 1.0,
    features: tuple[int, ...] = (3,),
    target: tuple[int, ...] = (1,),
    **changes: Any,
) -> Segment:
    fields: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("a", model, ("x",), ("a",), CPU),),
        "inputs": {"x": (TensorSpec(features, "float32"), CPU), "y": (TensorSpec(target, "float32"), CPU)},
        "outputs": ("a",),
        "losses": (LossTerm("l", "a", Loss(loss), ("a", "y"), CPU, weight),),
        "groups": (ParameterGroup("g", optimizer or Optimizer("sgd", lr=0.1), ("a",)),),
    }
    return Segment(**{**fields, **changes})


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Columns x [24, 3] and y [24, 1], and an order of their rows."""
    draw = torch.Generator().manual_seed(7)
    x, y = torch.randn(24, 3, generator=draw), torch.randn(24, 1, generator=draw)
    return x, y, torch.randperm(24, generator=draw)
