"""Hints of models, losses, optimizers and steps of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import anyaccel_torch  # noqa: E402
from anyaccel.device import Device  # noqa: E402
from anyaccel.segment import (  # noqa: E402
    LossTerm,
    Operation,
    ParameterGroup,
    Segment,
    TensorSpec,
)
from anyaccel.specs import Loss  # noqa: E402
from anyaccel_distributed.processes import free_port  # noqa: E402
from anyaccel_torch import TorchSchedule  # noqa: E402
from anyaccel_torch.backend import TorchBackend  # noqa: E402
from anyaccel_torch.compiling import steps, strategies, toolchain_check  # noqa: E402

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
Y = X[:, :1].copy()
ON = "net"
EVAL = aa.EvalPhase("eval", data="all", losses=[aa.AppliedLoss("mse", on=ON)], accelerator="cpu")


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


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_modules_that_a_node_does_not_take(hint: Any) -> None:
    with hint("write __hash__ = nn.Module.__hash__ into {}, because defining __eq__ removes it"):
        graph_of(Equal(3, 1)).build()
    assert train(Hashed(3, 1)).loss.size
    assert Hashed.__hash__ is nn.Module.__hash__
    with hint("begin the __init__ of {} with super().__init__()"):
        graph_of(NotBegun()).build()
    assert train(Begun()).loss.size  # which calls super().__init__()
    with hint(
        "make it dense: nn.Parameter(value.to_dense()); or, if it is not trained, a buffer: register_buffer('NAME', "
        "value, persistent=False)"
    ):
        graph_of(Sparse("sparse")).build()
    assert train(Sparse("dense")).loss.size  # nn.Parameter(value.to_dense())
    assert train(Sparse("register_buffer, persistent=False")).loss.size
    with hint(
        "leave it out of the state, and create it in the __init__ of the model: register_buffer('NAME', value, "
        "persistent=False)"
    ):
        graph_of(Sparse("persistent")).state()
    assert graph_of(Sparse("register_buffer(..., persistent=False)")).state()  # as its __init__() does
    scripted = torch.jit.script(linear())
    with hint("pass the scripted module before it is frozen: torch.jit.script(module)"):
        graph_of(torch.jit.freeze(scripted.eval())).build()
    assert train(torch.jit.script(linear())).loss.size
    shapes = ({0: torch.export.Dim("rows")},)
    exported = torch.export.export(linear(), (torch.ones(2, 3),), dynamic_shapes=shapes).module()
    with hint(
        "pass the original module; or, if both modes compute the same, set model.train = model.eval = "
        "lambda *mode: model"
    ):
        train(exported)
    assert train(linear()).loss.size
    model = exported
    model.train = model.eval = lambda *mode: model
    assert train(model).loss.size


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
    with hint("return outputs with the batch as an axis from the model's forward"):
        graph_of(Reduced(keep=False)).build()
    graph_of(Reduced(keep=True)).build()
    with hint("return value.to_dense() from its forward"):
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


def unreduced(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets, reduction="none")


def test_losses(hint: Any) -> None:
    with hint("request the gradient of the input inside the model: x = x.clone().requires_grad_()"):
        train(Slope(own=False), y=X)
    x = torch.ones(3)
    x = x.clone().requires_grad_()
    assert train(Slope(own=True), y=X).loss.size
    with hint("return the mean over the batch, for example with reduction='mean'"):
        train(linear(), unreduced)
    assert train(linear(), nn.MSELoss(reduction="mean")).loss.size
    with hint("correct loss_kwargs, or pass an instance"):
        train(linear(), aa.Loss(nn.HuberLoss, loss_kwargs={"sigma": 1}))
    assert train(linear(), aa.Loss(nn.HuberLoss, loss_kwargs={"delta": 1.0})).loss.size
    assert train(linear(), nn.HuberLoss(delta=1.0)).loss.size
    segment = segment_of(linear())
    (term,) = segment.losses
    with hint("pass two inputs, such as ['outputs', 'targets']"):
        TorchBackend().build(replace(segment, losses=(replace(term, inputs=(ON,)),)))
    assert train(linear(), aa.AppliedLoss("mse", on=ON, inputs=["outputs", "targets"])).loss.size
    with hint("pass a class such as torch.nn.MSELoss"):
        TorchBackend().build(segment_of(linear(), Loss(type("Nothing", (), {}))))
    assert train(linear(), aa.AppliedLoss(torch.nn.MSELoss, on=ON)).loss.size
    with hint("return floating values from the model: output.float()"):
        graph_of(Function(lambda _, output: output.long())).run(EVAL, progress="none")
    assert graph_of(Function(lambda _, output: output.long().float())).run(EVAL, progress="none").losses
    with hint(
        "unfreeze a node before the loss, set requires_grad on its parameters, add a loss after it, or remove "
        "detach() and no_grad() from the model and the loss"
    ):
        train(Function(lambda _, output: output.detach()))
    assert train(Function(lambda _, output: output)).loss.size  # neither detach() nor no_grad()


def test_optimizers_and_schedules(hint: Any) -> None:
    with hint("correct the settings of Optimizer(...)"):
        train(linear(), optimizer=aa.Optimizer(torch.optim.RMSprop, lr=0.1, speed=3))
    assert train(linear(), optimizer=aa.Optimizer(torch.optim.RMSprop, lr=0.1, alpha=0.9)).loss.size
    with hint("pass the class, Optimizer(torch.optim.Adam, lr=1e-3), or a function of parameters and lr"):
        train(linear(), optimizer=aa.Optimizer(lambda parameters: torch.optim.Adam(parameters, 1e-3)))
    for own in (torch.optim.Adam, lambda parameters, lr: torch.optim.Adam(parameters, lr)):
        assert train(linear(), optimizer=aa.Optimizer(own, lr=1e-3)).loss.size
    with hint("use another optimizer, or create it in a custom step: TrainPhase(step=function)"):
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
    step_lr = torch.optim.lr_scheduler.StepLR
    for given in (step_lr, step_lr(torch.optim.SGD([torch.zeros(1)]), 1)):
        with hint("write schedule=anyaccel_torch.TorchSchedule({}, ...), with its settings but no optimizer"):
            aa.Optimizer("sgd", schedule=given)
    assert aa.Optimizer("sgd", schedule=anyaccel_torch.TorchSchedule(step_lr, step_size=1))
    with hint("write TorchSchedule({}, cycle_momentum=False, ...)"):
        TorchSchedule(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9)
    assert TorchSchedule(torch.optim.lr_scheduler.OneCycleLR, cycle_momentum=False, max_lr=0.1, total_steps=9)


def test_embeddings_with_sparse_gradients(hint: Any) -> None:
    def table(sparse: bool) -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 2, sparse=sparse), nn.Flatten(), nn.Linear(6, 1))

    x = np.zeros((24, 3), "int64")
    with hint("use dense gradients, nn.Embedding(..., sparse=False), or train it with Optimizer('sgd', lr=0.1)"):
        train(table(sparse=True), x=x, optimizer="adam")
    assert train(table(sparse=False), x=x, optimizer="adam").loss.size  # nn.Embedding(5, 2, sparse=False)
    assert train(table(sparse=True), x=x, optimizer=aa.Optimizer("sgd", lr=0.1)).loss.size


def segment_of(model: Any, loss: Any = "mse", target: tuple[int, ...] = (1,)) -> Segment:
    """A segment of a backend's own tests, `x -> net -> loss against y`, for what phases refuse before."""
    cpu = Device("cpu")
    return Segment(
        "s",
        (Operation(ON, model, ("x",), (ON,), cpu),),
        {"x": (TensorSpec((3,), "float32"), cpu), "y": (TensorSpec(target, "float32"), cpu)},
        (ON,),
        (LossTerm("l", ON, loss if isinstance(loss, Loss) else Loss(loss), (ON, "y"), cpu),),
        (ParameterGroup("g", aa.Optimizer("sgd", lr=0.1), (ON,)),),
    )


class Sometimes(nn.Module):
    """Writes to its input if that is large."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.layer, self.copies = linear(), copies

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone() if self.copies else x
        return self.layer(x.clamp_(max=1.0) if (x > 1).any() else x)


def test_models_that_write_to_their_inputs(hint: Any) -> None:
    small, large, target = torch.zeros(2, 3), torch.full((2, 3), 3.0), torch.zeros(2, 1)
    program: Any = TorchBackend().build(segment_of(Sometimes(copies=False)))
    program.forward((small, target))
    with hint("copy the input before writing to it: x = x.clone()"):
        program.forward((large, target))
    x = large
    x = x.clone()
    program = TorchBackend().build(segment_of(Sometimes(copies=True)))
    program.forward((small, target))
    program.forward((large, target))

    def train_two(model: nn.Module) -> None:
        segment = segment_of(linear())
        first = Operation("w", model, ("x",), ("w",), Device("cpu"))
        operations, losses = (first, *segment.operations), (replace(segment.losses[0], inputs=(ON, "w")),)
        program: Any = TorchBackend().build(replace(segment, operations=operations, losses=losses))
        rows, order = [torch.cat([torch.zeros(2, 3), torch.full((2, 3), 3.0)]), torch.zeros(4, 1)], torch.arange(4)
        program.train_steps(rows, [order, order], 0, 1, 2)
        program.train_steps(rows, [order, order], 2, 1, 2)

    with hint("copy the input before writing to it: x = x.clone()"):
        train_two(Sometimes(copies=False))
    x = x.clone()
    train_two(Sometimes(copies=True))


def test_shapes_of_losses(hint: Any) -> None:
    program: Any = TorchBackend().build(segment_of(linear(), "mse", (3,)))
    with hint("set output_shape of the model to the targets' shape per sample, or reshape the target column"):
        program.train_steps([torch.ones(4, 3), torch.ones(4, 3)], [torch.arange(4)] * 2, 0, 1, 4)
    weighted: Any = TorchBackend().build(segment_of(linear(), Loss("cross_entropy", class_weights=[1.0, 2.0]), (3,)))
    with hint("change the shape of the targets"):
        weighted.train_steps([torch.ones(4, 3), torch.ones(4, 3)], [torch.arange(4)] * 2, 0, 1, 4)
    assert train(aa.SequentialMLP(output_shape=(3,)), y=X).loss.size
    flat = np.ones(24, "float32")
    assert train(linear(), y=flat.reshape(-1, 1)).loss.size
    with hint("pass an nn.Module"):
        TorchBackend().build(segment_of(3)).forward((torch.ones(2, 3), torch.ones(2, 1)))
    module: nn.Module = linear()
    TorchBackend().build(segment_of(module)).forward((torch.ones(2, 3), torch.ones(2, 1)))


class Batches:
    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for size in self.sizes:
            yield {"x": X[:size], "y": Y[:size]}


def normalizing() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def run_on(source: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode(ON, normalizing(), source.reference())], "sgd")
    phase = aa.TrainPhase(
        "t", data=source, losses=[aa.AppliedLoss("mse", on=ON)], sampler=aa.SimpleSampler(8), accelerator="cpu"
    )
    return graph.run(phase, progress="none")


def test_batches_and_shared_parameters(hint: Any) -> None:
    def source(*sizes: int) -> Any:
        return aa.IterableSource("d", Batches(*sizes), features="x", target="y")

    with hint("leave the batch out, DataLoader(..., drop_last=True), or use another batch size"):
        run_on(source(8, 8, 1))
    assert run_on(source(8, 8)).loss.size
    rows = TensorDataset(torch.from_numpy(X[:17]), torch.from_numpy(Y[:17]))
    aa.fit(normalizing(), DataLoader(rows, 8, drop_last=True), loss="mse", epochs=1, accelerator="cpu")
    assert run_on(source(9, 8)).loss.size
    shared = nn.Linear(3, 3)
    given = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    losses = [aa.AppliedLoss("mse", on="taught")]
    phase = aa.TrainPhase("t", data="all", losses=losses, accelerator="cpu")

    def graph(first: Any, last: Any) -> aa.ModelGraph:
        nodes = [aa.ModelNode("kept", first, given.reference()), aa.ModelNode("taught", last, "kept")]
        return aa.ModelGraph(nodes, "sgd").freeze("kept")

    with hint(
        "freeze both, use separate parameters, or set requires_grad=False for parameters that must not be trained"
    ):
        graph(nn.Sequential(shared), nn.Sequential(shared, linear())).run(phase, progress="none")
    both = graph(nn.Sequential(shared), nn.Sequential(shared, linear())).freeze("taught")
    assert both.run(aa.EvalPhase("e", data="all", losses=losses, accelerator="cpu"), progress="none").losses
    assert graph(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), linear())).run(phase, progress="none")
    for parameter in shared.parameters():
        parameter.requires_grad = False
    assert graph(nn.Sequential(shared), nn.Sequential(shared, linear())).run(phase, progress="none")


class Evil:
    pass


def test_files_of_weights(hint: Any, tmp_path: Path) -> None:
    model, path = linear(), tmp_path / "other.pt"
    graph = graph_of(model)
    torch.save({"weight": Evil()}, path)
    with hint("if you trust the file, load it with torch yourself, and call load_weights(model.state_dict())"):
        graph.load_weights(path)
    assert torch.load(path, weights_only=False)
    graph.load_weights(model.state_dict())
    torch.save([1, 2], path)
    with hint("save it again with torch.save(model.state_dict(), 'weights.pt')"):
        graph.load_weights(path)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    graph.load_weights(tmp_path / "weights.pt")
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, path)
    with hint("pass its part with the weights: load_weights({})"):
        graph.load_weights(path)
    graph.load_weights(torch.load(str(path), weights_only=True)["state_dict"])


def test_arrays_and_tensors(hint: Any) -> None:
    backend, cpu = TorchBackend(), Device("cpu")
    array = np.array(["1", "2"])
    with hint("convert the array first, for example with array.astype('float32')"):
        backend.from_host(array, cpu)
    backend.from_host(array.astype("float32"), cpu)
    tensor = torch.eye(2).to_sparse()
    with hint("convert it first: tensor.float(), or tensor.to_dense() if it is sparse"):
        backend.to_host(tensor)
    assert backend.to_host(tensor.to_dense()).sum() == 2
    assert backend.to_host(torch.ones(2).to(torch.float8_e4m3fn).float()).sum() == 2
    with hint("pass a plain array without gradients, or copy it through host memory with from_host"):
        backend.from_dlpack(object(), cpu)
    backend.from_dlpack(np.ones(2), cpu)
    backend.from_host(np.ones(2), cpu)


@pytest.fixture
def plain_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled functions are plain Python, which takes no time to compile."""
    monkeypatch.setattr(strategies, "torch_compile", lambda function, options: function)
    monkeypatch.setattr(strategies, "_CACHE", OrderedDict())
    monkeypatch.setattr(toolchain_check, "scan", lambda: None)
    monkeypatch.setattr(steps, "_MUCH_SLOWER", float("inf"))


def compiled(model: Any, compile: str = "steps", batch: int = 8, **settings: Any) -> Any:
    """Train with compiled steps; a warning that they are not is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", aa.errors.CompileWarning)
        return train(model, compile=compile, batch_size=batch, **settings)


def counting(module: Function, output: Tensor) -> Tensor:
    module.calls += 1
    return output


def counting_in_buffer(module: Function, output: Tensor) -> Tensor:
    module.seen.add_(1)
    return output


def replacing(module: Function, output: Tensor) -> Tensor:
    module.seen = module.seen + 1
    return output


def copying(module: Function, output: Tensor) -> Tensor:
    module.seen.copy_(module.seen + 1)
    return output


@pytest.mark.usefixtures("plain_compiler")
def test_steps_that_cannot_be_compiled(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with hint("store the value in a register_buffer, and update it in place"):
        compiled(Function(counting))
    assert compiled(Function(counting_in_buffer)).loss.size  # `seen` is given to register_buffer()
    with hint("update it in place, for example with copy_"):
        compiled(Function(replacing))
    assert compiled(Function(copying)).loss.size

    def table(sparse: bool) -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 2, sparse=sparse), nn.Flatten(), nn.Linear(6, 1))

    x = np.zeros((24, 3), "int64")
    with hint("create the embedding with sparse=False"):
        compiled(table(True), x=x)
    assert compiled(table(sparse=False), x=x).loss.size
    with hint("use an available name, or set compile='off'"):
        compiled(linear(), optimizer=aa.Optimizer(torch.optim.NAdam))
    assert compiled(linear(), optimizer="adam").loss.size
    assert compiled(linear(), compile="off", optimizer=aa.Optimizer(torch.optim.NAdam)).loss.size
    program: Any = TorchBackend().build(segment_of(linear()))
    rows = [torch.ones(24, 3), torch.ones(24, 1)]
    with hint("use a batch_size that is a multiple of {}"):
        program.compile(rows, [torch.arange(24)] * 2, 5, 2)
    program.compile(rows, [torch.arange(24)] * 2, 6, 2)  # batch_size 6
    with hint("use a smaller batch_size"):
        program.compile(rows, [torch.arange(24)] * 2, 25)
    program.compile(rows, [torch.arange(24)] * 2, 8)  # batch_size 8
    monkeypatch.setattr(steps, "_MUCH_SLOWER", 0.0)
    with hint("set compile='off' or 'auto'"):
        compiled(linear())
    assert compiled(linear(), compile="off").loss.size and compiled(linear(), compile="auto").loss.size
    monkeypatch.setattr(steps, "_MUCH_SLOWER", float("inf"))
    monkeypatch.setattr(
        strategies, "torch_compile", lambda function, options: lambda *args: [loss + 9 for loss in function(*args)]
    )
    monkeypatch.setattr(strategies, "_CACHE", OrderedDict())
    with hint("set compile='off'; random numbers generated by a module may be the cause"):
        compiled(linear())
    assert compiled(linear(), compile="off").loss.size


def test_steps_that_cannot_be_traced(hint: Any, request: pytest.FixtureRequest) -> None:
    with hint("avoid Python that depends on the values of tensors (if x.sum() > 0, x.item()), and print calls"):
        compiled(Function(lambda _, x: x if x.sum() > 0 else -x))
    request.getfixturevalue("plain_compiler")
    assert compiled(Function(lambda _, x: torch.where(x.sum() > 0, x, -x))).loss.size  # without item()


def test_steps_that_are_not_compiled(hint: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("plain_compiler")
    segment, rows, order = segment_of(linear()), [torch.ones(24, 3), torch.ones(24, 1)], torch.arange(24)
    program: Any = TorchBackend().build(replace(segment, compile="off"))
    with hint(
        "set compile='auto', and train at least one node, with all nodes on one CPU or CUDA device and without "
        "constraints of Keras"
    ):
        program.compile(rows, [order, order], 4)
    program = TorchBackend().build(replace(segment, compile="auto"))
    program.compile(rows, [order, order], 4)
    (term,) = segment.losses
    weighted = replace(term, loss=Loss("cross_entropy", class_weights=[1.0, 2.0]))
    classes = {**segment.inputs, "y": (TensorSpec((), "int64"), Device("cpu"))}

    def classifying() -> Any:
        given = segment_of(nn.Linear(3, 2))
        return TorchBackend().build(replace(given, losses=(weighted,), inputs=classes))

    rows = [torch.ones(24, 3), torch.ones(24, dtype=torch.int64)]
    with hint("use a smaller batch_size instead, or set compile='off'"):
        classifying().compile(rows, [order, order], 4, 2)
    classifying().compile(rows, [order, order], 2)  # batch_size 2
    y = np.zeros((24,), "int64")
    loss = aa.Loss("cross_entropy", class_weights=[1.0, 2.0])
    assert train(nn.Linear(3, 2), loss, y=y, compile="off", accumulate=2).loss.size


def test_dtypes_of_chips(hint: Any) -> None:
    class Chip(TorchBackend):
        unsupported_dtypes = frozenset({"float64"})

    backend, tensor = Chip(), torch.ones(2, dtype=torch.float64)
    with hint("cast it first: .float()"):
        backend.move(tensor, Device("cpu"))
    assert backend.move(tensor.float(), Device("cpu")).sum() == 2


def test_variables(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyaccel_torch.gradient_buckets import bucket_bytes
    from anyaccel_torch.simulated import SWITCH, running

    monkeypatch.setenv("ANYACCEL_TORCH_BUCKET_MB", "many")
    with hint("set it to a size such as {}=25, to inf for all gradients at once, or unset it"):
        bucket_bytes()
    for value in ("25", "inf"):
        monkeypatch.setenv("ANYACCEL_TORCH_BUCKET_MB", value)
        assert bucket_bytes() == float(value) * 2**20
    monkeypatch.delenv("ANYACCEL_TORCH_BUCKET_MB")
    assert bucket_bytes()
    monkeypatch.setenv(SWITCH, "many")
    with hint("set {}=2, or unset it"):
        running()
    monkeypatch.delenv(SWITCH)
    assert not running()


class Cache(nn.Module):
    """Keeps what it has computed from one call for the next."""

    def __init__(self, use_cache: bool) -> None:
        super().__init__()
        self.layer, self.config, self.kept = nn.Linear(3, 3), type("Config", (), {"use_cache": use_cache}), []

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.config.use_cache:
            self.kept.append(y.detach())
            for other in self.kept:
                y = (y * other.mean()).tanh()
        return y


def test_parts_that_are_computed_again(hint: Any) -> None:
    def run(model: nn.Module, remat: Any, **settings: Any) -> Any:
        layers = nn.Sequential(nn.Sequential(model, nn.Linear(3, 3)), linear())
        graph = graph_of(layers, remat=remat)
        losses = [aa.AppliedLoss("mse", on=ON)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", aa.errors.CompileWarning)
            phase = aa.TrainPhase("train", data="all", losses=losses, accelerator="cpu", batch_size=4, **settings)
            return graph.run(phase, progress="none")

    with hint(
        "turn off state that the model keeps between calls, such as its key-value cache (model.config.use_cache = "
        "False); or leave remat out"
    ):
        run(Cache(use_cache=True), "0", compile="off")
    model = Cache(use_cache=True)
    model.config.use_cache = False
    assert run(model, "0", compile="off").loss.size
    assert run(Cache(use_cache=True), None, compile="off").loss.size  # without remat
    with hint("set compile='off', or leave remat out"):
        run(nn.Linear(3, 3), "0", compile="steps", accumulate=2)
    assert run(nn.Linear(3, 3), "0", compile="off", accumulate=2).loss.size
    assert run(nn.Linear(3, 3), None, compile="auto", accumulate=2).loss.size  # without remat


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("test_torch_simulated.py", {"ANYACCEL_PLUGINS": "torch", "ANYACCEL_TORCH_SIMULATE": "2"}),
        ("test_keras_on_torch.py", {"KERAS_BACKEND": "torch"}),
    ],
)
def test_in_a_process_of_its_own(file: str, settings: dict[str, str]) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(file))]
    done = subprocess.run(command, env=kept | settings, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("bucket", "tests"), [("0.002", ""), ("inf", "twice")])
def test_in_two_processes(bucket: str, tests: str) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | place
    kept["ANYACCEL_TORCH_BUCKET_MB"] = bucket
    file = str(Path(__file__).with_name("test_torch_replicas.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", tests, file]
    both = [
        subprocess.Popen(command, env={**kept, "RANK": rank}, stdout=subprocess.PIPE, text=True) for rank in ("0", "1")
    ]
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert all(process.returncode == 0 for process in both), "".join(printed)


class Around(torch.optim.SGD):
    """Has another optimizer in it."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        held = list(parameters)
        super().__init__(held, **settings)
        self.inner = torch.optim.SGD(held, **settings)


def test_optimizers_that_are_objects(hint: Any) -> None:
    model = linear()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    with hint("set them in the object, or pass its class: Optimizer(torch.optim.{}, {}=...)"):
        train(model, optimizer=aa.Optimizer(adam, lr=0.2))
    assert train(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.2)).loss.size
    assert train(model, optimizer=aa.Optimizer(torch.optim.Adam, lr=0.2)).loss.size
    nn.functional.mse_loss(model(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
    adam.step()
    with hint("create a new one from model.parameters()"):
        train(model, optimizer=adam)
    assert train(model, optimizer=torch.optim.Adam(model.parameters())).loss.size
    with hint(
        "create it with all parameters of the node's model, and set requires_grad=False for frozen ones; or pass its "
        "class"
    ):
        train(model, optimizer=torch.optim.Adam([model.weight]))
    model.bias.requires_grad = False
    assert train(model, optimizer=torch.optim.Adam(model.parameters())).loss.size
    with hint("create and step it in a custom step: TrainPhase(step=function)"):
        train(model, optimizer=Around(model.parameters(), lr=0.1))
    own = Around(model.parameters(), lr=0.1)

    def function(models: Any, batch: Any, optimizers: Any) -> Any:
        own.zero_grad()
        loss = nn.functional.mse_loss(models[ON](batch["x"]), batch["y"])
        loss.backward()
        own.step()
        return {"loss": loss.detach()}

    phase = aa.TrainPhase("own", data="all", step=function, accelerator="cpu")
    assert graph_of(model).run(phase, progress="none").loss.size
    with hint("write lr={}, without learning_rate"):
        aa.Optimizer(torch.optim.SGD, learning_rate=0.1)
    assert aa.Optimizer(torch.optim.SGD, lr=0.1)
    with hint("write lr=1.0, schedule=... with this value of {}, a function of the step"):
        aa.Optimizer(torch.optim.SGD, lr=lambda step: 0.1)
    assert train(linear(), optimizer=aa.Optimizer(torch.optim.SGD, lr=1.0, schedule=lambda step: 0.1)).loss.size


@pytest.mark.usefixtures("plain_compiler")
def test_hooks_of_all_optimizers(hint: Any) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(lambda *_: None)
    try:
        with hint("remove these hooks with their handles, or set compile='off'"):
            compiled(linear())
        assert compiled(linear(), compile="off").loss.size
    finally:
        handle.remove()
    assert compiled(linear()).loss.size


MODELS = """
from torch import nn

class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x * 2 if float(x.sum()) > 1e9 else x)

def plain():
    return nn.Linear(3, 3)
"""


def test_a_call_without_values(hint: Any, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODELS)
    place, machine = str(tmp_path / "model.py"), ("--on", "2x 24GB, cpu 64GB")
    with hint("pass valid inputs of a call, or leave them out") as printed:
        printed.text = cli("device-map", f"{place}:Reads", *machine, "--input", "float32[1,3]").output
    assert cli("device-map", f"{place}:Reads", *machine).exit_code == 0
    assert cli("device-map", f"{place}:plain", *machine, "--input", "float32[1,3]").exit_code == 0


def test_classes_of_losses_of_torch(hint: Any) -> None:
    y = (X[:, 0] > 0).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": y}, ["x"], ["y"])

    def fit(data: Any, y: Any = None) -> Any:
        settings: Any = {"loss": nn.CrossEntropyLoss(), "epochs": 1, "accelerator": "cpu", "progress": "none"}
        return aa.fit(nn.Linear(3, 2), data if y is None else (X, y), **settings).results.loss.size

    with hint("if these are class indices, cast them: feature_set.cast({{}}), or y.astype('int64')"):
        fit(data)
    assert fit(data.cast({"y": "int64"})) and fit(data, y.astype("int64"))
    with pytest.raises(aa.errors.ShapeError, match=r"data\.y is float32\[\].*feature_set\.cast\({'y': 'int64'}\)"):
        fit(data, y * 2)
    with hint("cast class indices: feature_set.cast({'y': 'int64'}), or y.astype('int64')"):
        fit(data.cast({"y": "int32"}))
    assert fit(data.cast({"y": "int32"}).cast({"y": "int64"})) and fit(data, (y > 0).astype("int64"))
    one_hot = np.eye(2, dtype="int64")[y.astype("int64")]
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": one_hot}, ["x"], ["y"])
    with hint("convert them to floats: feature_set.cast({{}: 'float32'})"):
        fit(data)
    assert fit(data.cast({"y": "float32"}))
