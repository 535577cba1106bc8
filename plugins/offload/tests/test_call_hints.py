"""Calls with arguments that there are not: what the distribution offers says which there are, and which was meant."""

from __future__ import annotations

import pytest
from torch import nn
from wrong_calls import check_refused, offered

import anyaccel_offload
import anyaccel_offload.torch
from anyaccel.errors import ArgumentError
from anyaccel_offload.jax import OffloadedChain

OF_CORE = {
    *("BlockPlace", "CpuOffloadHook", "DeviceMap", "LoadedCheckpoint", "Offload"),
    "ModelHook",  # a base without a constructor
}
"""Core calls them, or makes them, not users."""
OFFERED = offered(anyaccel_offload.torch, of_core=OF_CORE)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(OFFERED[name])


def test_the_hints_work() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ArgumentError, match=r"cpu_offload: missing a required argument: 'model'\. Hint: write cpu_off"):
        anyaccel_offload.torch.cpu_offload()
    with pytest.raises(ArgumentError, match=r"Hint: did you mean 'recurse'\?"):
        anyaccel_offload.torch.remove_hook_from_module(model, recursive=True)
    assert anyaccel_offload.torch.remove_hook_from_module(model, recurse=True) is model
    with anyaccel_offload.torch.init_empty_weights():
        assert nn.Linear(2, 1).weight.is_meta
    with pytest.raises(ArgumentError, match=r"OffloadedChain has no argument 'func'. Available: functions, parameters"):
        OffloadedChain(func=[])
