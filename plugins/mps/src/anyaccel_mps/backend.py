"""MpsBackend: placement, exchange, compute and memory in one class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from anyaccel.device import Device
from anyaccel.doctor import Check, Machine
from anyaccel_mps.compute import MpsCompute
from anyaccel_mps.exchange import MpsExchange
from anyaccel_mps.memory import MpsMemory
from anyaccel_torch import TorchBackend


class MpsBackend(MpsExchange, MpsCompute, MpsMemory, TorchBackend):
    """PyTorch on the Apple GPU: `TorchBackend` with the differences of MPS. Does not import torch."""

    environment: ClassVar[tuple[str, ...]] = (
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "KERAS_BACKEND",
    )

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """As `HealthChecks.health_checks`: dtypes that the Apple GPU lacks. Torch's own checks are of its plugin."""
        from anyaccel_mps.health_checks import machine_checks

        return machine_checks(machine)

    def device_checks(self, device: Device) -> Iterable[Check]:
        """As `HealthChecks.device_checks`; kernels are compiled by the system, so that there is nothing to compare."""
        return ()
