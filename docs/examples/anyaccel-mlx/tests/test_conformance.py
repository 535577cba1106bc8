"""The conformance kit over MLX: its own layers, compiled and not, the model of every framework, and two devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from anyaccel_mlx import MlxBackend
from anyaccel_mlx.conformance import MlxSubject

from anyaccel import Backend, Device
from anyaccel_devtools.testing import Subject, suite


class Mlx(MlxSubject):
    """MLX on the best device of this machine."""


class Standard(MlxSubject):
    """The same with SequentialMLP."""

    model = Subject.model
    random_model = Subject.random_model
    dropout_free_model = Subject.dropout_free_model


class Uncompiled(MlxSubject):
    """The same where the user has switched `mx.compile` off."""

    @pytest.fixture(autouse=True)
    def uncompiled(self) -> Iterator[None]:
        mx.disable_compile()
        yield
        mx.enable_compile()


def two_devices() -> Backend:
    """Two streams of the CPU stand for a Mac's GPU, MLX's default there, and its CPU; they share memory, too.

    It shows that devices are told apart and crossed as they must be, not that Metal computes as the CPU does.
    """
    streams = {Device("mps"): mx.default_stream(mx.cpu), Device("cpu"): mx.new_stream(mx.cpu)}

    class TwoDevices(MlxBackend):
        def devices(self) -> list[Device]:
            return list(streams)

        def default(self) -> Device:
            return next(device for device in streams if streams[device] == mx.default_stream(mx.cpu))

        def scope(self, device: Device) -> Any:
            return mx.stream(streams[device])

    return TwoDevices()


class Pair(MlxSubject):
    """Every promise about a second device, which a machine without Metal does not have."""

    @pytest.fixture
    def backend(self) -> Backend:
        if mx.metal.is_available():
            pytest.skip("this machine has two devices")
        return two_devices()


globals().update(suite(Mlx) | suite(Standard, "Standard") | suite(Pair, "Pair") | suite(Uncompiled, "Uncompiled"))
