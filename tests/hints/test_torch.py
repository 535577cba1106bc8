"""Hints of models, losses, optimizers and steps of torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from anyaccel_torch import TorchSchedule  # noqa: E402

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
Y = X[:, :1].copy()
ON = "net"


def graph_of(model: Any, x: Any = X, y: Any = Y, optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode(ON, model, data.reference(), **settings)], optimizer)


def train(model: Any, loss: Any = "mse", *, x: Any = X, y: Any = Y, optimizer: Any = "sgd", **settings: Any) -> Any:
    loss = loss if isinstance(loss, aa.AppliedLoss) else aa.AppliedLoss(loss, on=ON)
    phase = aa.TrainPhase("train", data="all", losses=[loss], accelerator="cpu", **settings)
    return graph_of(model, x, y, optimizer).run(phase, progress="none")


def linear() -> nn.Linear:
    return nn.Linear(3, 1)


class Function(nn.Module):
    """A layer, and a function of the module and the layer's output."""

    seen: Tensor

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer, self.function, self.calls = linear(), function, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.layer(x))


class Equal(nn.Linear):
    def __eq__(self, other: object) -> bool:
        return self is other


class Hashed(Equal):
    __hash__ = nn.Module.__hash__


class NotBegun(nn.Module):
    def __init__(self) -> None:
        pass


class Begun(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Sparse(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, value = linear(), torch.eye(3).to_sparse()
        if how == "sparse":
            self.table = nn.Parameter(value)
        elif how == "dense":
            self.table = nn.Parameter(value.to_dense())
        else:
            self.register_buffer("table", value, persistent=how == "persistent")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x @ self.table)


def test_modules_that_a_node_does_not_take(hint: Any) -> None:
    with hint("write __hash__ = nn.Module.__hash__ into {}, as defining __eq__ removes it"):
        graph_of(Equal(3, 1))
    assert train(Hashed(3, 1)).loss.size
    assert Hashed.__hash__ is nn.Module.__hash__
    with hint("begin the __init__ of {} with super().__init__()"):
        graph_of(NotBegun())
    assert train(Begun()).loss.size  # which calls super().__init__()
    with hint(
        "make it dense: nn.Parameter(value.to_dense()); or a buffer, register_buffer('NAME', value, persistent=False), "
        "where it is not trained"
    ):
        graph_of(Sparse("sparse"))
    assert train(Sparse("dense")).loss.size  # nn.Parameter(value.to_dense())
    assert train(Sparse("register_buffer, persistent=False")).loss.size
    with hint(
        "leave it out of the state, and give it in the __init__ of the model: register_buffer('NAME', value, "
        "persistent=False)"
    ):
        graph_of(Sparse("persistent")).state()
    assert graph_of(Sparse("register_buffer(..., persistent=False)")).state()  # as its __init__() does
    scripted = torch.jit.script(linear())
    with hint("give the scripted module before it is frozen: torch.jit.script(module)"):
        graph_of(torch.jit.freeze(scripted.eval()))
    assert train(torch.jit.script(linear())).loss.size
    exported = torch.export.export(linear(), (torch.ones(2, 3),)).module()
    with hint(
        "give the module that it was made of; or, if it computes the same in both, set model.train = model.eval = "
        "lambda *mode: model"
    ):
        train(exported)
    assert train(linear()).loss.size
    model = exported
    model.train = model.eval = lambda *mode: model
    assert train(model, sampler=aa.SimpleSampler(2)).loss.size


class Extra(nn.Linear):
    extra: Any = object()

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class Reduced(nn.Module):
    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.layer, self.keep = linear(), keep

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.keep else self.layer(x).mean()


def test_states_and_shapes_of_modules(hint: Any, tmp_path: Path) -> None:
    model = Extra(3, 1)
    with hint("return these from get_extra_state"):
        graph_of(model).state()
    model.extra = {"count": 3}
    assert model.get_extra_state() and graph_of(model).state()
    model = linear().to(torch.float8_e4m3fn)
    with hint("convert the model before saving, with model.float(), and back after loading"):
        graph_of(model).state()
    state = graph_of(model.float()).state()
    graph_of(model).load_state(state)
    model.to(torch.float8_e4m3fn)
    with hint("keep the batch as an axis of what the model's forward returns"):
        graph_of(Reduced(keep=False)).build()
    graph_of(Reduced(keep=True)).build()
    with hint("let its forward return value.to_dense()"):
        graph_of(Function(lambda _, value: value.to_sparse())).build()
    assert train(Function(lambda _, value: value.to_sparse().to_dense())).loss.size
    images = np.zeros((8, 5, 6, 3), "float32")
    with hint("store images channels first: x.transpose(0, 3, 1, 2)"):
        graph_of(nn.Conv2d(3, 2, 3), images, images).build()
    first = images.transpose(0, 3, 1, 2)
    graph_of(nn.Conv2d(3, 2, 3), first, first).build()
    table = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 1))
    given = graph_of(table, np.zeros_like(X))
    feature_set = aa.FeatureSet.from_dict("data", {"x": np.zeros_like(X), "y": Y}, ["x"], ["y"])
    with hint("cast the data: feature_set.cast({...: 'int64'}, keep_splits=True)"):
        given.build()
    whole = feature_set.cast({"x": "int64"}, keep_splits=True)
    aa.ModelGraph([aa.ModelNode(ON, table, whole.reference())], "sgd").build()


class Slope(nn.Module):
    def __init__(self, own: bool) -> None:
        super().__init__()
        self.layer, self.own = linear(), own

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_() if self.own else x
            (slope,) = torch.autograd.grad(self.layer(x).sum(), x, create_graph=True)
        return slope


class Flat(nn.Module):
    """Has outputs of another shape for the targets than it says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def unreduced(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets, reduction="none")


def test_losses(hint: Any) -> None:
    with hint("let the model ask for the gradient of what it computes with: x = x.clone().requires_grad_()"):
        train(Slope(own=False), y=X)
    x = torch.ones(3)
    x = x.clone().requires_grad_()
    assert train(Slope(own=True), y=X).loss.size
    with hint("return the mean over the batch, such as with reduction='mean'"):
        train(linear(), unreduced)
    assert train(linear(), nn.MSELoss(reduction="mean")).loss.size
    with hint("correct loss_kwargs, or give an instance"):
        train(linear(), aa.AppliedLoss(nn.HuberLoss, on=ON, loss_kwargs={"sigma": 1}))
    assert train(linear(), aa.AppliedLoss(nn.HuberLoss, on=ON, loss_kwargs={"delta": 1.0})).loss.size
    assert train(linear(), nn.HuberLoss(delta=1.0)).loss.size
    with hint("give two inputs, such as ['outputs', 'targets']"):
        train(linear(), aa.AppliedLoss("mse", on=ON, inputs=["outputs"]))
    assert train(linear(), aa.AppliedLoss("mse", on=ON, inputs=["outputs", "targets"])).loss.size
    with hint("give a class such as torch.nn.MSELoss"):
        train(linear(), aa.AppliedLoss(type("Nothing", (), {}), on=ON))
    assert train(linear(), aa.AppliedLoss(torch.nn.MSELoss, on=ON)).loss.size
    with hint("let the model return floating values: output.float()"):
        train(Function(lambda _, output: output.long()), y=Y.astype("int64"))
    assert train(Function(lambda _, output: output.float())).loss.size
    with hint(
        "unfreeze a node before the loss, set requires_grad on its parameters, add a loss after it, or take detach() "
        "and no_grad() out of the model and the loss"
    ):
        train(Function(lambda _, output: output.detach()))
    assert train(Function(lambda _, output: output)).loss.size  # neither detach() nor no_grad()


def test_optimizers_and_schedules(hint: Any) -> None:
    with hint("correct the settings of Optimizer(...)"):
        train(linear(), optimizer=aa.Optimizer(torch.optim.RMSprop, lr=0.1, speed=3))
    assert train(linear(), optimizer=aa.Optimizer(torch.optim.RMSprop, lr=0.1, alpha=0.9)).loss.size
    with hint("use another optimizer, or create it in a step of your own: TrainPhase(step=function)"):
        train(linear(), optimizer=aa.Optimizer(torch.optim.LBFGS))
    assert train(linear(), optimizer=aa.Optimizer(torch.optim.NAdam)).loss.size

    def function(models: Any, batch: Any, optimizers: Any) -> Any:
        own = torch.optim.LBFGS(models[ON].parameters(), lr=0.1)

        def closure() -> Tensor:
            own.zero_grad()
            loss = nn.functional.mse_loss(models[ON](batch["x"]), batch["y"])
            loss.backward()
            return loss

        return {"loss": own.step(closure)}

    graph = graph_of(linear())
    phase = aa.TrainPhase("own", data="all", step=function, accelerator="cpu")
    assert graph.run(phase, progress="none").loss.size
    with hint("write schedule=anyaccel.ReduceLROnPlateau('val_loss')"):
        TorchSchedule(torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert aa.Optimizer("sgd", schedule=aa.ReduceLROnPlateau("val_loss"))
    with hint("write TorchSchedule({}, cycle_momentum=False, ...)"):
        TorchSchedule(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9)
    assert TorchSchedule(torch.optim.lr_scheduler.OneCycleLR, cycle_momentum=False, max_lr=0.1, total_steps=9)


def test_embeddings_with_sparse_gradients(hint: Any) -> None:
    def table(sparse: bool) -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 2, sparse=sparse), nn.Flatten(), nn.Linear(6, 1))

    x = np.zeros((24, 3), "int64")
    with hint(
        "let the embedding give dense ones, nn.Embedding(..., sparse=False), or train it with Optimizer('sgd', lr=0.1)"
    ):
        train(table(sparse=True), x=x, optimizer="adam")
    assert train(table(sparse=False), x=x, optimizer="adam").loss.size  # nn.Embedding(5, 2, sparse=False)
    assert train(table(sparse=True), x=x, optimizer=aa.Optimizer("sgd", lr=0.1)).loss.size
