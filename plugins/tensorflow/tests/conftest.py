"""Fixtures of the TensorFlow plugin's tests: three logical CPUs, the backend, and the segment that most tests use."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU = Device("cpu")
CPUS = 3


def pytest_configure(config: pytest.Config) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * CPUS)


@pytest.fixture(scope="session")
def backend() -> TensorFlowBackend:
    return TensorFlowBackend()


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
    device: Device = CPU,
    **changes: Any,
) -> Segment:
    given: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("a", model, ("x",), ("a",), device),),
        "inputs": {"x": (TensorSpec(features, "float32"), device), "y": (TensorSpec(target, "float32"), device)},
        "outputs": ("a",),
        "losses": (LossTerm("l", "a", Loss(loss), ("a", "y"), device, weight),),
        "groups": (ParameterGroup("g", optimizer or Optimizer("sgd", lr=0.1), ("a",)),),
    }
    return Segment(**{**given, **changes})
