"""What other frameworks lend to torch stays as it is, and numbers of 16 bits learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch import TorchBackend

CPU = Device("cpu")


def segment(model: nn.Module, optimizer: Optimizer, **changes: Any) -> Segment:
    """`x [4] -> n`, judged against `t`."""
    spec = TensorSpec((4,), "float32")
    given: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("n", model, ("x",), ("n",), CPU),),
        "inputs": {"x": (spec, CPU), "t": (spec, CPU)},
        "outputs": ("n",),
        "losses": (LossTerm("l", "n", Loss("mse"), ("n", "t"), CPU),),
        "groups": (ParameterGroup("g", optimizer, ("n",)),),
    }
    return Segment(**{**given, **changes})


class Sometimes(nn.Module):
    """Writes to what it is given if that is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x.clamp_(max=1.0) if (x > 1).any() else x)
        return found


def test_a_module_that_writes_for_some_batches_only_is_told() -> None:
    program = TorchBackend().build(segment(Sometimes(), Optimizer("sgd")))
    target = torch.zeros(2, 4)
    program.forward((torch.zeros(2, 4), target))
    with pytest.raises(PhaseError) as caught:
        program.forward((torch.full((2, 4), 3.0), target))
    assert str(caught.value) == (
        "a module of segment 's' has written to its input 'x', which it did not do in the first batch; others may read "
        "that memory. Hint: copy the input before writing to it: x = x.clone()."
    )


class Own(nn.Module):
    """Gives a view of its parameter, whose gradient then is a view of the cotangent."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table.view(2, 4)


@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5)])
def test_clipping_writes_to_no_cotangent(scale: Any) -> None:
    model = Own()
    made = segment(model, Optimizer("sgd", lr=1.0), losses=(), inputs={"x": (TensorSpec((4,), "float32"), CPU)})
    program = TorchBackend().build(made)
    lent = np.full((2, 4), 2.0, "float32")
    _, _, pullback = program.forward_pullback((torch.zeros(2, 4),))
    pullback((torch.from_numpy(lent),))
    program.optimizer_step({"g": scale})
    program.close()
    np.testing.assert_array_equal(lent, 2.0)
    np.testing.assert_array_equal(model.table.detach().numpy(), 0.0)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_16_bits_all_learn(name: str, dtype: torch.dtype) -> None:
    """torch's fused SGD on the CPU leaves whole blocks of them as they are."""
    model = nn.Linear(64, 64).to(dtype)
    before = model.weight.detach().clone()
    spec = TensorSpec((64,), str(dtype).removeprefix("torch."))
    changes = {"inputs": {"x": (spec, CPU), "t": (spec, CPU)}}
    program = TorchBackend().build(segment(model, Optimizer(name, lr=0.1), **changes))
    given = torch.ones(8, 64, dtype=dtype), torch.full((8, 64), 5.0, dtype=dtype)
    for _ in range(2):
        _, _, pullback = program.forward_pullback(given)
        pullback((None,))
        program.optimizer_step()
    program.close()
    assert (model.weight != before).float().mean() > 0.9


class Halves(nn.Module):
    """Writes to its input, and says so nowhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(0.5)


@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_writes_by_a_function_spoils_no_other_reader(training: bool) -> None:
    operations = (
        Operation("n", nn.Identity(), ("x",), ("n",), CPU),
        Operation("half", Halves(), ("n",), ("half",), CPU),
        Operation("beside", nn.Identity(), ("n",), ("beside",), CPU),
    )
    made = segment(nn.Identity(), Optimizer("sgd"), operations=operations, outputs=("n", "half", "beside"), groups=())
    program = TorchBackend().build(made)
    given = torch.full((2, 4), 4.0), torch.zeros(2, 4)
    for _ in range(3):
        n, half, beside = program.forward_pullback(given)[0] if training else program.forward(given)[0]
        assert [float(one[0, 0]) for one in (n, half, beside)] == [4.0, 2.0, 4.0]
