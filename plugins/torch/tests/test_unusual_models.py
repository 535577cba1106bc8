"""What people give as a model beside plain modules: it trains, or is refused with what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.errors import AnyaccelError, GraphError, SpecError, StateError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
X = np.random.default_rng(0).normal(size=(32, 6)).astype("f4")


class Net(nn.Module):
    """A layer; those that derive from it change its call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def trained(model: Any, upstream: Any = None, optimizer: Any = "sgd") -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    feed = {"x": data.reference()} if upstream == "x" else data.reference()
    graph = aa.ModelGraph([aa.ModelNode("net", model, feed)], optimizer)
    losses = [aa.AppliedLoss("mse", on="net")]
    graph.run(aa.TrainPhase("t", data="all", losses=losses, accelerator="cpu"), progress="none")
    return graph


class Equal(Net):
    """Cannot be hashed."""

    def __eq__(self, other: object) -> bool:
        return self is other


class Hashed(Equal):
    """As the hint says."""

    __hash__ = nn.Module.__hash__


class NoInit(Net):
    """Forgets to call the `__init__` of Module."""

    def __init__(self) -> None:
        self.scale = 2.0


class WithInit(Net):
    """As the hint says."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0


def doubled(x: Tensor) -> Tensor:
    return 2 * x


class Doubled(Net):
    """Calls a scripted function."""

    def __init__(self) -> None:
        super().__init__()
        self.doubled = torch.jit.script(doubled)

    def forward(self, x: Tensor) -> Tensor:
        return self.doubled(self.layer(x))


class SparseParameter(Net):
    """Has a matrix that is sparse, as a parameter, a dense parameter or a buffer."""

    def __init__(self, make: Callable[[Tensor], Any], **buffer: Any) -> None:
        super().__init__()
        value = make(torch.eye(6))
        if isinstance(value, nn.Parameter):
            self.matrix = value
        else:
            self.register_buffer("matrix", value, **buffer)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.mm(self.matrix, x.t()).t())


class SparseOutput(Net):
    """Returns a sparse tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).to_sparse()


class DenseOutput(SparseOutput):
    """As the hint says."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to_dense()


class ByName(nn.Module):
    """Takes its input by name alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, *, x: Tensor) -> Tensor:
        return self.layer(x)


class Embeds(Net):
    """An embedding, whose gradients may be sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 1, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.embedding((x[:, 0] > 0).long())


class Rounded(Net):
    """Returns integers."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).round().long()


def parameter(*, sparse: bool) -> Callable[[Tensor], Any]:
    return lambda value: nn.Parameter(value.to_sparse() if sparse else value.to_sparse().to_dense())


def exported() -> Any:
    return torch.export.export(Net(), (torch.ones(2, 6),))


REFUSED: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "unhashable": (Equal, r"cannot be hashed.*__hash__ = nn\.Module\.__hash__ into Equal", Hashed),
    "no_init": (NoInit, r"has not called the __init__.*with super\(\)\.__init__\(\)", WithInit),
    "tensor": (lambda: torch.ones(6, 1), r"a Tensor is not a torch module.*make it an nn\.Parameter", Net),
    "optimizer": (
        lambda: torch.optim.SGD(Net().parameters(), 0.1),
        "is not a torch module.*optimizer to the graph",
        Net,
    ),
    "exported": (exported, "an ExportedProgram is not a torch module.*that it was exported from", Net),
    "function": (
        lambda: torch.jit.script(doubled),
        r"ScriptFunction is not a torch module.*in the forward of an nn\.Module",
        Doubled,
    ),
    "dtype": (lambda: torch.float32, r"a dtype is not a torch module.*Hint: pass an nn\.Module", Net),
    "frozen": (
        lambda: torch.jit.freeze(torch.jit.script(Net().eval())),
        r"frozen by torch\.jit\.freeze and no longer .*before it is frozen: torch\.jit\.script\(module\)",
        lambda: torch.jit.script(Net()),
    ),
    "sparse_parameter": (
        lambda: SparseParameter(parameter(sparse=True)),
        r"parameter 'matrix' is sparse.*nn\.Parameter\(value\.to_dense\(\)\); or, if .* a buffer.*persistent=False",
        lambda: SparseParameter(parameter(sparse=False)),
    ),
    "sparse_output": (SparseOutput, r"returns a sparse tensor.*value\.to_dense\(\)", DenseOutput),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_is_refused_with_what_to_give(name: str) -> None:
    make, message, as_hinted = REFUSED[name]
    with pytest.raises(GraphError, match=rf"^node 'net'.*{message}"):
        trained(make())
    trained(as_hinted())


def test_a_sparse_buffer_may_stay_out_of_the_state() -> None:
    graph = trained(SparseParameter(Tensor.to_sparse))
    with pytest.raises(StateError, match=r"buffers/matrix is a sparse tensor.*register_buffer\(.*persistent=False\)"):
        graph.state()
    assert "net/buffers/matrix" not in trained(SparseParameter(Tensor.to_sparse, persistent=False)).state()


def test_inputs_by_name_alone_are_asked_for_by_name() -> None:
    with pytest.raises(GraphError, match=r"takes its inputs by name.*pass a dict: \{'x': \.\.\.\}"):
        trained(ByName())
    trained(ByName(), "x")


def test_sparse_gradients_of_an_optimizer_that_takes_none() -> None:
    with pytest.raises(
        SpecError, match=r"sparse gradients.*sparse=False\), or train it with Optimizer\('sgd', lr=0\.1\)"
    ):
        trained(Embeds(sparse=True), optimizer="adam")
    trained(Embeds(sparse=False), optimizer="adam")
    trained(Embeds(sparse=True), optimizer=aa.Optimizer("sgd", lr=0.1))


def test_a_loss_of_integers_says_so() -> None:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])

    def evaluated(model: nn.Module) -> float:
        graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "sgd")
        phase = aa.EvalPhase("v", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator="cpu")
        return graph.run(phase, progress="none").loss

    with pytest.raises(AnyaccelError, match=r"does not compute mse_cpu of long values.*output\.float\(\)"):
        evaluated(Rounded())

    class Floating(Rounded):
        def forward(self, x: Tensor) -> Tensor:
            output = super().forward(x)
            return output.float()

    model = Floating()
    expected = nn.functional.mse_loss(model(torch.tensor(X)), torch.tensor(X[:, :1])).item()
    assert evaluated(model) == pytest.approx(expected)
