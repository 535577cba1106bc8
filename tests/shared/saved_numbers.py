"""How near the numbers of a run that goes on from a folder of 0.1 are to those that 0.1 gave."""

from __future__ import annotations

import re
from typing import Any

import pytest


def near(key: str, value: Any, close: float) -> Any:
    """Return what a value is compared with: numbers within `close`, all else unchanged.

    The gradient of a bias before batch normalization is 0 but for rounding, which differs between processors, and Adam
    makes whole steps of it. Training does not see them. The bias, the running mean, and evaluations, which use the
    mean, differ by more, and what an optimizer keeps of the bias is of rounding alone.
    """
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(isinstance(number, float) for number in numbers):
        return value
    if key == "val_loss" or re.search("bias|mean", key):
        return pytest.approx(value, rel=max(close, 0.1), abs=5.0 if "optimizer/" in key else 0.2)
    return pytest.approx(value, rel=close, abs=1e-5)
