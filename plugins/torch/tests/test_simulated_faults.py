"""Plugins with faults that only show on other devices than the CPU: the kit finds them on a simulated device.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

# ruff: noqa: SLF001  (a fault is put where it would be)

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import nn

from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing import ComputeTests, ExchangeTests, MultiStepTests
from anyaccel_devtools.testing.harness import Harness
from anyaccel_torch import (
    TorchBackend,
    forward_plan,
    losses,
    optimizer_state,
    optimizers,
    program,
    simulated,
)
from anyaccel_torch.simulated.backend import SimulatedBackend

simulated.start(2)


class LeavesBuffers:
    """`place` moves parameters and forgets buffers."""

    def place(self, obj: Any, device: Device) -> Any:
        placed = super().place(obj, device)  # type: ignore[misc]
        for part in placed.modules() if isinstance(placed, nn.Module) else ():
            for name, buffer in part._buffers.items():
                part._buffers[name] = buffer.cpu()
        return placed


class OrdersOnTheHost:
    """`gather_rows` copies the order to the host."""

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        return column[start:stop] if order is None else column.index_select(0, order[start:stop].cpu())


class NeverBack:
    """`to_host` assumes that all memory is the host's."""

    def to_host(self, tensor: Any) -> Any:
        return tensor.detach().numpy()


def states_on_the_host(patch: pytest.MonkeyPatch) -> None:
    load_slots = optimizers.load_slots

    def load_on_host(optimizer: Any, parameter: Any, *rest: Any, **settings: Any) -> None:
        load_slots(optimizer, parameter, *rest, **settings)
        state = optimizer.state[parameter]
        state.update({key: value.cpu() for key, value in state.items()})

    patch.setattr(optimizers, "load_slots", load_on_host)


def no_hops(patch: pytest.MonkeyPatch) -> None:
    slot = forward_plan.ForwardPlan.slot  # a value stays where it is
    patch.setattr(forward_plan.ForwardPlan, "slot", lambda self, name, device=None: slot(self, name))


def weights_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(losses, "_weight", lambda count, total: torch.tensor(float(count)))


def seeds_the_cpu_only(patch: pytest.MonkeyPatch) -> None:
    seed_generators = program.seed_generators
    patch.setattr(program, "seed_generators", lambda devices, key, states: seed_generators((), key, states))


def losses_on_the_host(patch: pytest.MonkeyPatch) -> None:
    loss_table = program.TorchProgram.loss_table
    patch.setattr(program.TorchProgram, "loss_table", lambda self, losses: loss_table(self, losses).cpu())


def snapshots_on_the_host(patch: pytest.MonkeyPatch) -> None:
    copied = optimizer_state.copied_state

    def available(state: Any) -> Any:
        return {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in copied(state).items()}

    patch.setattr(optimizer_state, "copied_state", available)


Fault = type | Callable[[pytest.MonkeyPatch], None]
MIXED = r"Expected all tensors to be on the same device, but found at least two devices, sim:\d and (sim:0|cpu)!"
FAULTS: dict[str, tuple[Fault, Callable[..., None], type[Exception], str]] = {
    "a buffer is left behind": (
        LeavesBuffers,
        MultiStepTests.test_buffers_change_as_in_single_steps,
        DeviceMismatchError,
        rf"node 'node' on sim:0 .*{MIXED} \(when checking arguments of native_batch_norm",
    ),
    "an order stays on the host": (
        OrdersOnTheHost,
        ExchangeTests.test_gather_rows_stays_on_the_device,
        RuntimeError,
        rf"{MIXED} \(when checking arguments of index_select",
    ),
    "a value is read where it is": (
        NeverBack,
        ExchangeTests.test_from_host_takes_read_only_arrays,
        TypeError,
        "can't convert sim:0 device type tensor to numpy",
    ),
    "optimizer state stays on the host": (
        states_on_the_host,
        ComputeTests.test_training_continues_from_returned_states,
        DeviceMismatchError,
        rf"an optimizer step of segment 'segment': an operation received tensors on several devices: .*{MIXED}",
    ),
    "a loop mixes devices": (
        no_hops,
        ComputeTests.test_operations_on_two_devices_of_one_segment,
        DeviceMismatchError,
        rf"node 'node' on sim:1 .* its inputs are x on sim:0; .*{MIXED}",
    ),
    "a weight is made on the host": (
        weights_on_the_host,
        ComputeTests.test_outputs_and_losses_stay_on_the_device,
        AssertionError,
        r"At index 2 diff: Device\(kind='cpu', index=0\) != Device\(kind='sim', index=0\)",
    ),
    "only the CPU draws by the seed": (
        seeds_the_cpu_only,
        ComputeTests.test_training_randomness_follows_the_seed,
        AssertionError,
        "Arrays are not equal",
    ),
    "losses are brought to the host": (
        losses_on_the_host,
        MultiStepTests.test_losses_are_a_matrix_on_the_device,
        AssertionError,
        r"Device\(kind='cpu', index=0\) == Device\(kind='sim', index=0\)",
    ),
    "a snapshot comes back on the host": (
        snapshots_on_the_host,
        MultiStepTests.test_restore_undoes_train_steps,
        DeviceMismatchError,
        rf"a training step of 4 rows in segment 'segment': .*{MIXED}",
    ),
}


def run_kit_test(name: str, base: type[TorchBackend], patch: pytest.MonkeyPatch) -> None:
    """Run the test of the kit that finds a fault over a backend that has it."""
    fault, test = FAULTS[name][:2]
    cls: Any = base
    if isinstance(fault, type):
        cls = type(fault.__name__, (fault, base), {})
    else:
        fault(patch)
    backend = cls()
    available = list(backend.devices())
    fixtures = {
        "harness": Harness(
            backend, available[0], torch.from_numpy, lambda tensor: np.asarray(tensor.detach().cpu().numpy())
        ),
        "backend": backend,
        "exchange": backend,
        "device": available[0],
        "second_device": available[-1],
        "model": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        "random_model": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        "buffered_model": lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
        "optimizer": Optimizer("adam", lr=0.05),
    }
    wanted_fixtures = list(inspect.signature(test).parameters)[1:]
    owner = next(item for item in (MultiStepTests, ComputeTests, ExchangeTests) if hasattr(item, test.__name__))
    test(owner(), **{item: fixtures[item] for item in wanted_fixtures})


class OnlyCpu(TorchBackend):
    """torch on a machine without a GPU."""

    kinds = ("cpu",)


@pytest.mark.parametrize("name", FAULTS)
def test_the_kit_finds_on_a_simulated_device_what_the_cpu_hides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, error, pattern = FAULTS[name]
    run_kit_test(name, OnlyCpu, monkeypatch)
    with pytest.raises(error) as caught:
        run_kit_test(name, SimulatedBackend, monkeypatch)
    assert re.search(pattern, str(caught.value)), caught.value


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_fault_the_same_test_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAULTS, name, (lambda patch: None, *FAULTS[name][1:]))
    run_kit_test(name, SimulatedBackend, monkeypatch)
