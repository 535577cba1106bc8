"""Hints of core that a model of torch meets, and no model of NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")
nn = torch.nn

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def features(**columns: Any) -> aa.FeatureSet:
    columns = {"x": X, **columns}
    return aa.FeatureSet.from_dict("data", {**columns, "y": X[:, :1]}, list(columns), ["y"])


DATA = features()


def graph(model: Any, upstream: Any = None, optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, upstream or DATA.reference(), **settings)], optimizer)


def trained(given: aa.ModelGraph, *losses: Any, **settings: Any) -> Any:
    settings = {"losses": list(losses) or [LOSS], **settings}
    return given.run(aa.TrainPhase("train", data="all", accelerator="cpu", **settings), progress="none")


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, a: Any, b: Any) -> Any:
        return self.line(a + b)


def test_arguments_of_calls(hint: Any) -> None:
    label, model = "net", Pair()
    data = features(a=X, b=X)
    with hint("pass every argument of its call: ModelNode(label, model, [data.reference('a'), data.reference('b')])"):
        graph(model, data.reference("a")).build()
    node = aa.ModelNode(label, model, [data.reference("a"), data.reference("b")])
    assert trained(aa.ModelGraph([node], "sgd"))
    feature_set = data
    with hint("add it: {{}: feature_set.reference(...), ...}"):
        graph(model, {"a": data.reference("a")}).build()
    assert trained(graph(model, {"a": data.reference("a"), "b": feature_set.reference("b")}))


def test_layers_that_are_not_trained(hint: Any) -> None:
    table = {"a": X[:, 0], "b": X[:, 1], "y": X[:, 2]}
    net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    settings = {"target": "y", "loss": "mse", "epochs": 1, "accelerator": "cpu", "progress": "none"}
    for word in ("freeze", "frozen", "trainable"):
        with hint(
            "freeze layers before training: layer.requires_grad_(False) in torch, layer.trainable = False in Keras; "
            "graph.freeze('NODE') freezes a whole node"
        ):
            aa.fit(net, table, **settings, **{word: ["0"]})
    for rate in (0, 0.0):
        with hint("write lr=0.001, or {}"):
            aa.Optimizer("adamw", groups={"0*": {"lr": rate}})
    assert aa.Optimizer("adamw", groups={"1*": {"lr": 0.001}, "0*": {"lr": 0.01}}).groups
    layer = net[0]
    layer.requires_grad_(False)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    fitted = aa.fit(net, table, **settings, optimizer=aa.Optimizer("adam", lr=0.001))
    same = [torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)]
    assert fitted.model is net and same == [True, True, False, False]
    whole = graph(nn.Linear(3, 1))
    assert whole.freeze("net").frozen == ("net",)


def test_shapes_and_dtypes_of_inputs(hint: Any) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1)

        def forward(self, a: Any, b: Any) -> Any:
            return torch.cat([torch.stack([a, a], 1), self.line(b)], 1).mean(1, keepdim=True)

    scalars = features(a=X[:, 0], b=X[:, 1])
    with hint("a scalar per sample arrives as [batch]; store the column as [n, 1] if the model expects [batch, 1]"):
        graph(Mixed(), [scalars.reference("a"), scalars.reference("b")]).build()
    stored = features(a=X[:, 0], b=X[:, 1:2])
    assert trained(graph(Mixed(), [stored.reference("a"), stored.reference("b")]))
    feature_set = features(i=np.ones((24, 3), int))
    with hint("convert the data, array.astype({}), or feature_set.cast({...: {}}, keep_splits=True)"):
        graph(nn.Linear(3, 1), feature_set.reference("i")).build()
    array = np.ones((24, 3), int)
    assert trained(graph(nn.Linear(3, 1), features(i=array.astype("float32")).reference("i")))
    assert trained(graph(nn.Linear(3, 1), feature_set.cast({"i": "float32"}, keep_splits=True).reference("i")))
    with hint("set it for each input: batch_axis={'INPUT': 1}"):
        graph(Pair(), {"a": DATA.reference(), "b": DATA.reference()}, batch_axis=5).build()

    class Turned(Pair):
        def forward(self, a: Any, b: Any) -> Any:
            return self.line(a.movedim(1, 0) + b)

    turned = graph(Turned(), {"a": DATA.reference(), "b": DATA.reference()}, batch_axis={"a": 1})
    assert trained(turned)


class Line(nn.Module):
    """A line whose result a function changes."""

    def __init__(self, change: Any = lambda model, output: output) -> None:
        super().__init__()
        self.line, self.change = nn.Linear(3, 1), change

    def forward(self, x: Any) -> Any:
        return self.change(self, self.line(x))


def test_what_models_return(hint: Any) -> None:
    with hint("end its forward, call or __call__ with `return ...`"):
        graph(Line(lambda model, output: None)).build()
    assert callable(Line().__call__) and trained(graph(Line()))
    with hint(
        "wrap a model that returns a list with an entry for each sample (a detector) in a module whose forward "
        "returns a tensor, and call it in a custom step, TrainPhase(step=...): docs/how-to/custom-step.md"
    ):
        graph(Line(lambda model, output: list(output))).build()

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        loss = sum(row.square().mean() for row in list(models["net"](batch["x"])))
        loss.backward()
        optimizers["net"].step()
        return {"loss": loss}

    given = graph(Line())
    results = given.run(aa.TrainPhase("train", data="all", step=step, accelerator="cpu"), progress="none")
    assert results.loss.size


def test_outputs_that_differ_in_training(hint: Any) -> None:
    def with_mean(model: Any, output: Any) -> Any:
        return (output, output.mean()) if model.training else output

    with hint("return it in evaluation too, or leave it out in training"):
        trained(graph(Line(with_mean)))
    assert trained(graph(Line()))

    def twice_later(model: Any, output: Any) -> Any:
        return (output, output) if getattr(model, "later", False) else output

    model = Line(twice_later)
    given = graph(model)
    given.build()
    model.later = True
    with hint(
        "return the same outputs in every call, or name all outputs in training, starting with those of evaluation: "
        "ModelNode(..., outputs=['NAME', ...])"
    ):
        given.run(aa.EvalPhase("test", data="all", accelerator="cpu"), progress="none")
    named = aa.ModelNode("net", model, DATA.reference(), outputs=["NAME", "again"])
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.NAME", "targets"])
    assert trained(aa.ModelGraph([named], "sgd"), loss)


def mean_square(models: Any, batch: Any, optimizers: Any) -> Any:
    loss = (models["net"](batch["x"]) - batch["y"]).square().mean()
    loss.backward()
    optimizers["net"].step()
    return {"loss": loss}


def test_steps_of_the_users_own(hint: Any) -> None:
    def stepped(given: aa.ModelGraph) -> Any:
        return given.run(aa.TrainPhase("train", data="all", step=mean_square, accelerator="cpu"), progress="none")

    with hint("remove it from the node, and set it in the step"):
        stepped(graph(Line(), precision="bf16-mixed"))
    assert stepped(graph(Line())).loss.size
    nodes = [aa.ModelNode("first", aa.SequentialMLP(3), DATA.reference()), aa.ModelNode("net", Line(), "first")]
    with hint("put the nodes of each framework in a separate graph, or train with losses=[...]"):
        stepped(aa.ModelGraph(nodes, "sgd"))
    losses = [LOSS]
    assert trained(aa.ModelGraph(nodes, "sgd"), losses=losses).loss.size
    assert stepped(graph(Line())).loss.size  # a graph of its own


def test_parts_that_are_computed_again(hint: Any) -> None:
    with hint("leave remat out, or use the framework's function in the model"):
        trained(graph(Line(), remat="zzz*"))
    assert trained(graph(Line()))  # without remat

    class Again(Line):
        def forward(self, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(self.line, x, use_reentrant=False)

    assert trained(graph(Again()))


def test_optimizers_of_torch_in_folders(hint: Any, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    given = graph(Line(), optimizer=aa.Optimizer(torch.optim.SGD, lr=0.1))
    trained(given)
    given.save(folder)
    with hint("pass one: ModelGraph.load(folder, optimizer=...)"):
        aa.ModelGraph.load(folder, feature_sets=[DATA], models={"net": Line()})
    optimizer = aa.Optimizer(torch.optim.SGD, lr=0.1)
    loaded = aa.ModelGraph.load(folder, optimizer=optimizer, feature_sets=[DATA], models={"net": Line()})
    assert trained(loaded)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x))


def test_weights_under_two_names(hint: Any) -> None:
    given = graph(Tied())
    given.build()
    arrays = {name: value.detach().numpy() for name, value in Tied().state_dict().items()}
    arrays["b.weight"] = arrays["b.weight"] + 1
    with hint("leave one of them out: names=lambda name: None if name == '...' else name"):
        given.load_weights(arrays)
    assert given.load_weights(arrays, names=lambda name: None if name == "b.weight" else name)


def test_models_that_are_planned(hint: Any, cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(128, 4), nn.Linear(4, 1))\n"
    )
    place, machine = f"{file}:build", ("--on", "2x 24GB, cpu 64GB")
    with hint("write its dtype and shape: 'int64[1,128]'") as printed:
        printed.text = cli("device-map", place, *machine, "--input", "zzz").output
    assert cli("device-map", place, *machine, "--input", "float32[1,128]").exit_code == 0
    with hint("specify it: --on '2x 24GB, cpu 64GB', or --on 'cpu 64GB'") as printed:
        printed.text = cli("device-map", place, "--on", "cpu").output
    assert cli("device-map", place, "--on", "2x 24GB, cpu 64GB").exit_code == 0
    assert cli("device-map", place, "--on", "cpu 64GB").exit_code == 0


def test_rates_of_optimizers_of_torch(hint: Any) -> None:
    with hint("write lr={}, without learning_rate"):
        aa.Optimizer(torch.optim.SGD, learning_rate=0.1)
    assert trained(graph(Line(), optimizer=aa.Optimizer(torch.optim.SGD, lr=0.1)))  # without learning_rate
