"""MpsBackend: placement, exchange, compute and memory in one class."""

from __future__ import annotations

from typing import ClassVar

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
