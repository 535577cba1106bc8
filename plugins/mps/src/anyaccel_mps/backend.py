"""MpsBackend: placement and every capability in one object."""

from __future__ import annotations

from typing import ClassVar

from anyaccel_mps.compute import MpsCompute
from anyaccel_mps.exchange import MpsExchange
from anyaccel_mps.memory import MpsMemory
from anyaccel_torch import TorchBackend


class MpsBackend(MpsExchange, MpsCompute, MpsMemory, TorchBackend):
    """torch on the Apple GPU: all that torch's backend does, with what is different there. Does not import torch."""

    environment: ClassVar[tuple[str, ...]] = (
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "KERAS_BACKEND",
    )
