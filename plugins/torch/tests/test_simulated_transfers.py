"""The ledger over simulated torch devices: the planted cases, and counts beside those of torch's own profiler.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import anyaccel as aa
from anyaccel.errors import DeviceMismatchError, TransferError
from anyaccel_torch import simulated

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for device in DEVICES:
        device.capacity = None
        device.clear()
    torch.manual_seed(0)
    yield


@pytest.fixture
def x() -> Tensor:
    return torch.arange(4.0).to(ONE)


def host_mask() -> Tensor:
    return torch.tensor([True, False, True, True])


PLANTED: dict[str, tuple[Callable[[Tensor], object], list[tuple[str, int, int]]]] = {
    "non-blocking from pageable memory": (
        lambda x: torch.ones(4).to(ONE, non_blocking=True),
        [("host to device", 16, 1)],
    ),
    "an explicit copy": (lambda x: x.to(TWO), [("device to device", 16, 0)]),
    "to NumPy": (lambda x: x.cpu().numpy(), [("device to host", 16, 1)]),
    "item": (lambda x: x[1].item(), [("device to host", 4, 1)]),
    "print": (lambda x: print(x), [("device to host", 16, 1)]),
    "a mask": (lambda x: x[x > 1], [("wait", 0, 1)]),
    "a mask of the host": (lambda x: x[host_mask()], [("host to device", 4, 1), ("wait", 0, 1)]),
    "if tensor": (lambda x: bool(x[1] > 0), [("device to host", 1, 1)]),
    "zeros": (lambda x: torch.zeros((), device=ONE), []),
    "a number": (lambda x: x + 1, []),
    "on the CPU": (lambda x: torch.ones(4)[torch.ones(4) > 0].sum().item(), []),
    "the same device": (lambda x: x.to(ONE), []),
    "where it is": (lambda x: torch.where(x > 1, x, 0.0), []),
    "indices of the device": (lambda x: x[torch.ones(2, dtype=torch.long, device=ONE)], []),
    "a number at a mask": (lambda x: x.__setitem__(x > 1, 0.0), []),
    "a list": (lambda x: x.tolist(), [("device to host", 16, 1)]),
    "nonzero": (lambda x: x.nonzero(), [("wait", 0, 1)]),
    "equal": (lambda x: torch.equal(x, x), [("wait", 0, 1)]),
    "a new tensor": (lambda x: torch.tensor([1.0, 2.0], device=ONE), [("host to device", 8, 1)]),
    "synchronize": (lambda x: torch.get_device_module(ONE).synchronize(), [("wait", 0, 1)]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(case: str, x: Tensor) -> None:
    function, expected = PLANTED[case]
    with aa.ledger() as moved:
        function(x)
    assert [(each.kind, each.nbytes, each.waits) for each in moved.rows] == expected
    assert {each.line.partition(":")[0] for each in moved.rows} <= {__file__}
    if expected:
        with pytest.raises(TransferError, match=expected[0][0].replace("wait", "waits")), aa.no_transfers(["torch"]):
            function(x)
    else:
        with aa.no_transfers(["torch"]):
            function(x)


def test_backward_is_seen(x: Tensor) -> None:
    """Gradients that go back to another device, which no code of the user says."""
    w = x.clone().requires_grad_()
    with aa.ledger() as moved:
        (w.to(TWO) * 2).sum().backward()
    ends = [(each.kind, each.source, each.target, each.nbytes) for each in moved.rows]
    assert ends == [("device to device", ONE, TWO, 16), ("device to device", TWO, ONE, 16)]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # of torch before 2.13
def test_counts_are_those_of_the_profiler(x: Tensor) -> None:
    """A training loop with copies, numbers that are read, and masks."""
    model = torch.nn.Linear(3, 1).to(ONE)
    data = torch.randn(8, 4, 3)

    def loop() -> None:
        for batch in data:
            loss = model(batch.to(ONE)).pow(2).mean()
            loss.backward()
            if loss > 1e9:
                break
            loss.item()
            x[x > 1]

    with aa.ledger() as moved, profile(activities=[ProfilerActivity.CPU]) as profiled:
        loop()
    counts = {each.key: each.count for each in profiled.key_averages()}
    by = {each.operation: each.number for each in moved.rows}
    reads = sum(each.number for each in moved.rows if each.operation == "_local_scalar_dense")
    # Each operator is one of the device, and one of the memory that stands for it.
    into = moved.totals("host to device")
    assert (into.transfers, into.nbytes) == (8, data.nbytes)
    assert reads == 16 == counts["aten::_local_scalar_dense"] // 2
    assert by["index"] == 8 == counts["aten::index"] // 2


def test_counts_are_those_of_the_devices_over_a_phase() -> None:
    """Rows that are loaded ahead by another thread, edges between devices, and losses that are read at the end."""
    rng = np.random.default_rng(0)
    table = {"x": rng.standard_normal((64, 3)).astype("f"), "y": rng.standard_normal((64, 1)).astype("f")}
    data = aa.FeatureSet.from_dict("data", table, ["x"], ["y"])
    nodes = [
        aa.ModelNode("body", torch.nn.Linear(3, 4), data.reference(), accelerator=ONE),
        aa.ModelNode("head", torch.nn.Linear(4, 1), "body", accelerator=TWO),
    ]
    phase = aa.TrainPhase(
        "fit", data=data, losses=[aa.AppliedLoss("mse", on="head")], batch_size=16, epochs=2, residency="streamed"
    )
    experiment = aa.Experiment("e", aa.ModelGraph(nodes, "adam"))
    for device in DEVICES:
        device.clear()
    with aa.ledger() as moved:
        experiment.run(phase)
    into, out = moved.totals("host to device"), moved.totals("device to host")
    assert into.transfers == sum(device.transfers.into.number for device in DEVICES)
    assert into.nbytes == sum(device.transfers.into.nbytes for device in DEVICES)
    assert out.transfers == sum(device.transfers.out.number for device in DEVICES)
    between = moved.totals("device to device")
    assert 2 * between.transfers == sum(device.transfers.between.number for device in DEVICES)
    assert moved.by("edge")["outputs of 'body'"].transfers == 2 * 4
    assert set(moved.by("phase")) == {"fit"}


# -- errors of operations over several devices -----------------------------------------------------------------------


class Shifted(torch.nn.Module):
    """Adds a tensor that nobody has registered, so that it is left behind."""

    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.shift  # mixes


def evaluate_shifted(shift: Tensor) -> str:
    data = aa.FeatureSet.from_dict("data", {"x": np.ones((4, 3), "f"), "y": np.ones((4, 1), "f")}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("shifts", Shifted(shift), data.reference(), accelerator=ONE)], "sgd")
    phase = aa.EvalPhase("look", data=data, losses=[aa.AppliedLoss("mse", on="shifts")])
    with pytest.raises(DeviceMismatchError) as caught:
        aa.Experiment("e", graph).run(phase)
    return str(caught.value)


def line_of(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [i for i, each in enumerate(lines, 1) if each.strip().endswith(f"# {text}")]
    return f"{__file__}:{number}"


def test_an_error_names_the_line_and_the_tensors_in_it() -> None:
    text = evaluate_shifted(torch.ones(1))
    assert text.startswith("node 'shifts' on sim:0 computes with tensors on several devices: its inputs are data.x on ")
    assert f"; at {line_of('mixes')}, with x on sim:0, self.shift on cpu. Hint: " in text


def test_with_a_ledger_it_names_who_moved_the_tensor() -> None:
    with aa.ledger():
        shift = torch.ones(1, device=TWO).cpu()  # moves
        text = evaluate_shifted(shift)
    assert f"self.shift on cpu, moved there at {line_of('moves')}. Hint: " in text
    assert "moved there" not in evaluate_shifted(shift)
