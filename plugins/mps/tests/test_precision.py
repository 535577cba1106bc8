"""Precisions on the Apple GPU, as far as they are known without one."""

from __future__ import annotations

import pytest
from torch import nn

from anyaccel.device import Device
from anyaccel.precision import ComputesPrecision
from anyaccel_mps.backend import MpsBackend

DEVICE = Device("mps", 0)


def test_double_precision_is_refused_when_a_phase_is_planned() -> None:
    reason = MpsBackend().required(ComputesPrecision).precision_reason(nn.Linear(2, 2), "float64", DEVICE)
    assert reason == "torch has no float64 on mps:0"


@pytest.mark.parametrize("precision", ["float32", "bf16-mixed", "fp16-mixed", "bf16"])
def test_other_precisions_are_those_of_torch(precision: str) -> None:
    assert MpsBackend().required(ComputesPrecision).precision_reason(nn.Linear(2, 2), precision, DEVICE) == ""
