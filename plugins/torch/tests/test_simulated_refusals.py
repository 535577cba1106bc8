"""The simulated device refuses what a GPU refuses, in the backward pass, too.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

# ruff: noqa: SLF001  (torch spells its operators over lists so, and its count of writes)

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.device import Device
from anyaccel_torch import simulated
from anyaccel_torch.simulated.backend import SimulatedBackend

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"
MIXED = "Expected all tensors to be on the same device, but found at least two devices, "


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for device in DEVICES:
        device.capacity = None
        device.clear()
    torch.manual_seed(0)
    yield


def ones(device: str = ONE, *shape: int, **settings: Any) -> Tensor:
    return torch.ones(shape or (2, 3), device=device, **settings)


# -- refused, as by a GPU --------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sum of two devices": (lambda: ones(ONE) + ones(TWO), RuntimeError, MIXED + "sim:0 and sim:1!"),
    "sum with the host": (lambda: ones() + torch.ones(2, 3), RuntimeError, MIXED + "sim:0 and cpu!"),
    "the host first": (lambda: torch.ones(2, 3) * ones(TWO), RuntimeError, MIXED + "sim:1 and cpu!"),
    "a number of another device": (lambda: ones() * torch.tensor(2.0, device=TWO), RuntimeError, MIXED),
    "a number of the device to the host": (lambda: torch.ones(2) + torch.tensor(1.0, device=ONE), RuntimeError, MIXED),
    "two numbers of the host": (
        lambda: torch.addcmul(ones(), torch.tensor(1.0), torch.tensor(1.0)),
        RuntimeError,
        MIXED,
    ),
    "into the host": (lambda: torch.zeros(()).add_(ones().sum()), RuntimeError, MIXED),
    "out on the host": (lambda: torch.add(ones(), 1, out=torch.empty(2, 3)), RuntimeError, MIXED),
    "product": (lambda: ones(ONE, 2, 2) @ ones(TWO, 2, 2), RuntimeError, MIXED),
    "joined": (lambda: torch.cat([ones(), torch.ones(2, 3)]), RuntimeError, MIXED),
    "stacked with a number of the host": (
        lambda: torch.stack([ones().sum(), torch.tensor(1.0)]),
        RuntimeError,
        MIXED,
    ),
    "condition on the host": (lambda: torch.where(torch.ones(2, 3) > 0, ones(), ones()), RuntimeError, MIXED),
    "layer elsewhere": (lambda: nn.Linear(3, 1).to(TWO)(ones()), RuntimeError, MIXED),
    "layer on the host": (lambda: nn.Linear(3, 1)(ones()), RuntimeError, MIXED),
    "convolution on the host": (lambda: nn.Conv2d(1, 1, 1)(ones(ONE, 1, 1, 2, 2)), RuntimeError, MIXED),
    "statistics elsewhere": (
        lambda: F.batch_norm(ones(), torch.zeros(3), torch.ones(3), training=True),
        RuntimeError,
        MIXED,
    ),
    "table elsewhere": (lambda: nn.Embedding(4, 2).to(ONE)(torch.tensor([1])), RuntimeError, MIXED),
    "classes on the host": (lambda: F.cross_entropy(ones(), torch.tensor([0, 1])), RuntimeError, MIXED),
    "rows by an order of the host": (lambda: ones().index_select(0, torch.tensor([1])), RuntimeError, MIXED),
    "host rows by an index of the device": (
        lambda: torch.ones(3)[torch.tensor([0], device=ONE)],
        RuntimeError,
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "equal": (lambda: torch.equal(ones(ONE), ones(TWO)), RuntimeError, MIXED),
    "lists": (lambda: torch._foreach_add([ones(ONE)], [ones(TWO)]), RuntimeError, MIXED),
    "lists in place": (lambda: torch._foreach_mul_([torch.ones(2)], [ones(ONE, 2)]), RuntimeError, MIXED),
    "list with a tensor elsewhere": (lambda: torch._foreach_mul([ones(ONE)], ones(TWO).sum()), RuntimeError, MIXED),
    "gradient from elsewhere": (
        lambda: ones(ONE, requires_grad=True).mul(2).backward(ones(TWO)),
        RuntimeError,
        "invalid gradient at index 0 - expected device sim:0 but got sim:1",
    ),
    "gradient set elsewhere": (
        lambda: setattr(ones(ONE, requires_grad=True), "grad", ones(TWO)),
        RuntimeError,
        "attempting to assign a gradient located on device",
    ),
    "numpy": (lambda: ones().numpy(), TypeError, "can't convert sim:0 device type tensor to numpy. Use Tensor.cpu()"),
    "asarray": (lambda: np.asarray(ones(TWO)), TypeError, "can't convert sim:1 device type tensor to numpy"),
    "numpy's DLPack": (
        lambda: np.from_dlpack(ones()),
        BufferError,
        "other frameworks do not support simulated devices",
    ),
    "no such device": (lambda: torch.zeros(1, device="sim:2"), RuntimeError, "invalid device ordinal 2: there are 2"),
    "moved to no such device": (lambda: torch.zeros(1).to("sim:7"), RuntimeError, "invalid device ordinal 7"),
    "index out of range": (lambda: ones()[torch.tensor([5], device=ONE)], IndexError, "index 5 is out of bounds"),
    "class out of range": (
        lambda: F.cross_entropy(ones(), torch.tensor([0, 3], device=ONE)),
        IndexError,
        "Target 3 is out of bounds",
    ),
    "row out of the table": (
        lambda: nn.Embedding(4, 2).to(ONE)(torch.tensor([4], device=ONE)),
        IndexError,
        "index out of range",
    ),
    "numbers of the host's generator": (
        lambda: torch.randn(2, device=ONE, generator=torch.Generator()),
        RuntimeError,
        "Expected a 'sim' device type for generator but found 'cpu'",
    ),
    "another current device": (lambda: torch.sim.set_device(1), NotImplementedError, "always sim:0"),
    "copy of what has a history": (
        lambda: copy.deepcopy(ones(requires_grad=True) * 2),
        RuntimeError,
        "Only Tensors created explicitly by the user",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_program_is_refused(name: str) -> None:
    program, error, message = WRONG[name]
    with pytest.raises(error) as caught:
        program()
    assert message in str(caught.value)


def test_host_operands_that_a_gpu_takes_are_taken() -> None:
    x, two = ones(), torch.tensor(2.0)
    assert (x * two).device == (two - x).device == x.device
    assert torch.where(x > 0, two, two).device == x.device
    assert x[torch.tensor([1, 0])].device == x.device
    assert x.clone().masked_fill_(x > 0, two).sum().item() == 12
    x[torch.tensor([0])] = two
    assert torch._foreach_mul([x], [two])[0].cpu().tolist() == [[4.0] * 3, [2.0] * 3]
    assert ones(TWO).copy_(torch.zeros(3)).sum().item() == 0


def test_no_page_locked_memory_is_simulated() -> None:
    with pytest.raises(RuntimeError, match="getPinnedMemoryAllocator"):
        torch.ones(2).pin_memory()
    backend = SimulatedBackend()
    moved = backend.move(torch.ones(2), Device("sim", 1), pinned=True)
    assert (str(moved.device), moved.cpu().tolist()) == (TWO, [1.0, 1.0])
    assert torch.ones(2).to(ONE, non_blocking=True).sum().item() == 2


# -- errors in the backward pass ---------------------------------------------------------------------------------------


class Custom(torch.autograd.Function):
    """Its backward is given by the test."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.back(grads[0]), None


def failing(_: Tensor) -> Tensor:
    raise ZeroDivisionError("of the user's")


@pytest.mark.parametrize("device", [ONE, TWO])
@pytest.mark.parametrize(
    ("back", "error", "message"),
    [
        (lambda grad: grad + torch.ones(2, 3), RuntimeError, MIXED),
        (failing, ZeroDivisionError, "of the user's"),
        (lambda grad: grad[torch.tensor([9])], IndexError, "out of bounds"),
    ],
    ids=["mixed", "own", "index"],
)
def test_errors_in_the_backward_pass_are_raised(device: str, back: Any, error: type[Exception], message: str) -> None:
    """In plain torch, a Python error would end the process there."""
    with pytest.raises(error, match=message):
        Custom.apply(ones(device, requires_grad=True), back).sum().backward()
    x = ones(device, requires_grad=True)
    Custom.apply(x, lambda grad: grad * 2).sum().backward()
    assert x.grad.sum().item() == 12


def test_out_of_memory_in_the_backward_pass_is_raised() -> None:
    x = torch.ones(50, 50, device=TWO, requires_grad=True)
    total = (x @ x).sum()
    DEVICES[1].capacity = DEVICES[1].used + 100
    with pytest.raises(torch.OutOfMemoryError, match="sim:1 has a capacity of"):
        total.backward()
