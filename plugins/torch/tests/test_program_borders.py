"""Memory of other frameworks is not changed, and 16-bit parameters are trained."""

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
    """`x [4] -> n`, with a loss against `t`."""
    spec = TensorSpec((4,), "float32")
    arguments: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("n", model, ("x",), ("n",), CPU),),
        "inputs": {"x": (spec, CPU), "t": (spec, CPU)},
        "outputs": ("n",),
        "losses": (LossTerm("l", "n", Loss("mse"), ("n", "t"), CPU),),
        "groups": (ParameterGroup("g", optimizer, ("n",)),),
    }
    return Segment(**{**arguments, **changes})


class Sometimes(nn.Module):
    """Writes to its input if that is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x.clamp_(max=1.0) if (x > 1).any() else x)
        return result


def test_module_that_starts_to_write_to_its_input_raises_phase_error() -> None:
    program = TorchBackend().build(segment(Sometimes(), Optimizer("sgd")))
    target = torch.zeros(2, 4)
    program.forward((torch.zeros(2, 4), target))
    with pytest.raises(PhaseError) as caught:
        program.forward((torch.full((2, 4), 3.0), target))
    assert str(caught.value) == (
        "a module of segment 's' has written to its input 'x', but did not do so in the first batch; other nodes may "
        "read that memory. Hint: copy the input before writing to it: x = x.clone()."
    )
    copying = Sometimes()
    copying.register_forward_pre_hook(lambda _, arguments: (arguments[0].clone(),))
    program = TorchBackend().build(segment(copying, Optimizer("sgd")))
    program.forward((torch.zeros(2, 4), target))
    large = torch.full((2, 4), 3.0)
    program.forward((large, target))
    assert (large == 3.0).all()


class Own(nn.Module):
    """Returns a view of its parameter, whose gradient then is a view of the cotangent."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table.view(2, 4)


@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5)])
def test_clipping_writes_to_no_cotangent(scale: Any) -> None:
    model = Own()
    made_segment = segment(model, Optimizer("sgd", lr=1.0), losses=(), inputs={"x": (TensorSpec((4,), "float32"), CPU)})
    program = TorchBackend().build(made_segment)
    lent = np.full((2, 4), 2.0, "float32")
    _, _, pullback = program.forward_pullback((torch.zeros(2, 4),))
    pullback((torch.from_numpy(lent),))
    program.optimizer_step({"g": scale})
    program.close()
    np.testing.assert_array_equal(lent, 2.0)
    np.testing.assert_array_equal(model.table.detach().numpy(), 0.0)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_16_bit_parameters_are_trained(name: str, dtype: torch.dtype) -> None:
    """torch's fused SGD on the CPU leaves whole blocks of them unchanged."""
    model = nn.Linear(64, 64).to(dtype)
    before = model.weight.detach().clone()
    spec = TensorSpec((64,), str(dtype).removeprefix("torch."))
    changes = {"inputs": {"x": (spec, CPU), "t": (spec, CPU)}}
    program = TorchBackend().build(segment(model, Optimizer(name, lr=0.1), **changes))
    arguments = torch.ones(8, 64, dtype=dtype), torch.full((8, 64), 5.0, dtype=dtype)
    for _ in range(2):
        _, _, pullback = program.forward_pullback(arguments)
        pullback((None,))
        program.optimizer_step()
    program.close()
    assert (model.weight != before).float().mean() > 0.9


class Halves(nn.Module):
    """Writes to its input, which no attribute shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(0.5)


@pytest.mark.parametrize("training", [True, False])
def test_module_that_writes_by_a_function_spoils_no_other_reader(training: bool) -> None:
    operations = (
        Operation("n", nn.Identity(), ("x",), ("n",), CPU),
        Operation("half", Halves(), ("n",), ("half",), CPU),
        Operation("beside", nn.Identity(), ("n",), ("beside",), CPU),
    )
    made_segment = segment(
        nn.Identity(), Optimizer("sgd"), operations=operations, outputs=("n", "half", "beside"), groups=()
    )
    program = TorchBackend().build(made_segment)
    arguments = torch.full((2, 4), 4.0), torch.zeros(2, 4)
    for _ in range(3):
        n, half, beside = program.forward_pullback(arguments)[0] if training else program.forward(arguments)[0]
        assert [float(output[0, 0]) for output in (n, half, beside)] == [4.0, 2.0, 4.0]
