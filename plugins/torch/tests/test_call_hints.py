"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

import pytest
from torch.optim.lr_scheduler import StepLR
from wrong_calls import check_refused, offered

import anyaccel_torch
import anyaccel_torch.simulated
from anyaccel.errors import ArgumentError, SpecError

OF_CORE = {
    *("TorchBackend", "backends", "SWITCH", "SimulatedDevice", "is_wanted", "running"),
    "TorchSchedule",  # takes the arguments of another
}
"""Core calls them, or makes them, not users."""
OFFERED = offered(anyaccel_torch, anyaccel_torch.simulated, of_core=OF_CORE)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(OFFERED[name])


def test_the_hints_work() -> None:
    with pytest.raises(ArgumentError, match=r"Available: output_shape, .* Hint: did you mean 'hidden_dim'\?"):
        anyaccel_torch.SequentialMLP(2, hiden_dim=3)
    assert anyaccel_torch.SequentialMLP(2, hidden_dim=3).get_config()["hidden_dim"] == 3


def test_a_schedule_names_what_its_scheduler_takes() -> None:
    with pytest.raises(SpecError, match=r"Available: step_size, gamma, last_epoch. Hint: did you mean 'step_size'\?"):
        anyaccel_torch.TorchSchedule(StepLR, stepsize=3)
    schedule = anyaccel_torch.TorchSchedule(StepLR, step_size=3)
    assert [schedule(step) for step in range(4)] == pytest.approx([1.0, 1.0, 1.0, 0.1])
