"""Mistakes of a first day with a model of torch: what is said, and that obeying its hint works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anyaccel as aa

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype("float32")
CLASSES, NUMBERS = np.arange(60) % 3, X[:, 0].copy()
IMAGES = RNG.standard_normal((60, 8, 8, 3)).astype("float32")
INDICES = RNG.integers(0, 9, (60, 4))


class Net(nn.Module):
    """A layer, called by `forward`, which subclasses write wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def net_with(forward: Callable[..., Any]) -> nn.Module:
    made: nn.Module = type("Mine", (Net,), {"forward": forward})()
    return made


class InList(nn.Module):
    """Layers in a list."""

    def __init__(self, container: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layers = container([nn.Linear(4, 3)])

    def forward(self, x: Any) -> Any:
        return self.layers[0](x)


class Two(nn.Module):
    """Two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any, y: Any) -> Any:
        return self.layer(x + y)


def data(y: Any = CLASSES, x: Any = X) -> aa.FeatureSet:
    features = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    features.split_random({"train": 0.8, "val": 0.2}, seed=0)
    return features


def train(
    model: Any = None, features: Any = None, optimizer: Any = "adam", loss: Any = "cross_entropy", **more: Any
) -> Any:
    features = data() if features is None else features
    node = aa.ModelNode("net", Net() if model is None else model, features.reference())
    phase = aa.TrainPhase("t", data="train", losses=[aa.AppliedLoss(loss, on="net")], **more)
    return aa.Experiment("e", aa.ModelGraph([node], optimizer), progress="none").run_phase(phase)


def judge(metric: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", Net(), data().reference())])
    return aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("v", data="val", metrics=[metric]))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3))


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 3))


def trained_with_two_inputs() -> Any:
    features = aa.FeatureSet.from_dict("data", {"a": X, "b": X, "y": CLASSES}, ["a", "b"], ["y"])
    features.split_random({"train": 0.8, "val": 0.2}, seed=0)
    node = aa.ModelNode("net", Two(), [features.reference("a"), features.reference("b")])
    phase = aa.TrainPhase("t", data="train", losses=[aa.AppliedLoss("cross_entropy", on="net")])
    return aa.Experiment("e", aa.ModelGraph([node], "adam"), progress="none").run_phase(phase)


def loaded() -> nn.Module:
    model = Net()
    model.load_state_dict(Net().state_dict())
    return model


ROWS: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "the class of a module": (lambda: train(Net), r"is the class Net\. Hint: create one: Net\(", lambda: train(Net())),
    "the state of a module": (
        lambda: train(Net().state_dict()),
        r"is a OrderedDict.*Hint: if this is the state of a model, create the model, load the state",
        lambda: train(loaded()),
    ),
    "a function": (
        lambda: train(F.relu),
        r"is a function.*Hint: pass an object of a model class",
        lambda: train(net_with(lambda self, x: F.relu(self.layer(x)))),
    ),
    "no return": (
        lambda: train(net_with(lambda self, x: None)),
        r"the model returned None, .*Hint: end its forward, call or __call__ with `return \.\.\.`",
        lambda: train(net_with(lambda self, x: self.layer(x))),
    ),
    "an attribute misspelt in forward": (
        lambda: train(net_with(lambda self, x: self.layr(x))),
        r"node 'net': Mine raised AttributeError in <lambda>, line \d+ of .*mistakes\.py: .*'layr'\. Hint: fix",
        lambda: train(net_with(lambda self, x: self.layer(x))),
    ),
    "no forward": (
        lambda: train(type("Mine", (nn.Module,), {})()),
        r"Mine raised NotImplementedError: .*\"forward\" function\. Hint: fix the model's code",
        train,
    ),
    "a layer of another size": (
        lambda: train(nn.Linear(5, 3)),
        r"node 'net' does not accept float32\[4\] from data\.x.*Hint: correct the sizes of the model",
        lambda: train(nn.Linear(4, 3)),
    ),
    "too few outputs": (
        lambda: train(nn.Linear(4, 2)),
        r"class index 2; the model has 2 classes, 0 to 1",
        lambda: train(nn.Linear(4, 3)),
    ),
    "layers in a list": (
        lambda: train(InList(list)),
        r"nothing to train: net \(no parameters\)\. Hint: use a model with trainable parameters.*in a plain list",
        lambda: train(InList(nn.ModuleList)),
    ),
    "an input too few": (
        lambda: train(Two()),
        r"missing 1 required positional argument: 'y'\. Hint: pass every argument of its call: ModelNode\(",
        trained_with_two_inputs,
    ),
    "an array out of forward": (
        lambda: train(net_with(lambda self, x: self.layer(x).numpy())),
        r"returned a ndarray.*Hint: wrap the model in one that returns only tensors",
        lambda: train(net_with(lambda self, x: self.layer(x))),
    ),
    "the mean out of forward": (
        lambda: train(net_with(lambda self, x: self.layer(x).mean())),
        r"returns \[\] for a batch of 2.*Hint: return outputs with the batch as an axis",
        lambda: train(net_with(lambda self, x: self.layer(x))),
    ),
    "detach in forward": (
        lambda: train(net_with(lambda self, x: self.layer(x).detach())),
        r"reaches a trained parameter.*Hint: .*remove detach\(\) and no_grad\(\) from the model",
        lambda: train(net_with(lambda self, x: self.layer(x))),
    ),
    "requires_grad_(False)": (
        lambda: train(Net().requires_grad_(False)),
        r"reaches a trained parameter.*Hint: .*set requires_grad on its parameters",
        lambda: train(Net().requires_grad_(True)),
    ),
    "an optimizer over another model's parameters": (
        lambda: train(Net(), optimizer=torch.optim.Adam(Net().parameters())),
        r"the Adam lacks a trained parameter of shape .*Hint: create it with all parameters of the node's model",
        lambda: train(model := Net(), optimizer=torch.optim.Adam(model.parameters())),
    ),
    "a loss that is no scalar": (
        lambda: train(loss=nn.CrossEntropyLoss(reduction="none")),
        r"returns shape \[32\], not a scalar tensor\. Hint: return the mean.*reduction='mean'",
        lambda: train(loss=nn.CrossEntropyLoss(reduction="mean")),
    ),
    "a loss as a number": (
        lambda: train(loss=lambda outputs, targets: F.cross_entropy(outputs, targets).item()),
        r"returns a float, not a scalar tensor\. Hint: return the mean over the batch",
        lambda: train(loss=lambda outputs, targets: F.cross_entropy(outputs, targets)),
    ),
    "channels last": (
        lambda: train(convolution(), data(x=IMAGES)),
        r"to have 3 channels, but got 8 channels.*Hint: store images channels first: x\.transpose\(0, 3, 1, 2\)",
        lambda: train(convolution(), data(x=IMAGES.transpose(0, 3, 1, 2))),
    ),
    "indices as floats": (
        lambda: train(embedding(), data(x=INDICES.astype("float32"))),
        r"'indices'.*Hint: cast the data: feature_set\.cast\(\{\.\.\.: 'int64'\}, keep_splits=True\)",
        lambda: train(embedding(), data(x=INDICES.astype("float32")).cast({"x": "int64"}, keep_splits=True)),
    ),
    "a tensor with a gradient as a column": (
        lambda: data(x=torch.tensor(X, requires_grad=True)),
        r"column 'x' is a Tensor that cannot be converted to an array.*Hint: pass its values: 'x': tensor\.detach\(\)",
        lambda: train(features=data(x=torch.tensor(X, requires_grad=True).detach().cpu())),
    ),
    "a metric of tensors": (
        lambda: judge(lambda outputs, targets: (torch.argmax(outputs, 1) == targets).float().mean()),
        r"metric '<lambda>' on node 'net' raised TypeError.*NumPy arrays.*Hint: give a function: def metric\(outputs",
        lambda: judge(lambda outputs, targets: float((outputs.argmax(1) == targets).mean())),
    ),
    "a loader feeds a node": (
        lambda: aa.ModelNode(
            "net", Net(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(X)))
        ),
        r"an upstream of type DataLoader\. Hint: pass feature_set\.reference",
        lambda: aa.ModelNode("net", Net(), data().reference()),
    ),
    "another name of torch": (
        lambda: aa.devices(framework="pytorch"),
        r"Hint: did you mean 'torch'\?",
        lambda: aa.devices(framework="torch"),
    ),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_mistake_is_told_with_a_hint_that_helps(name: str) -> None:
    wrong, message, right = ROWS[name]
    with pytest.raises(aa.errors.AnyaccelError, match=f"(?s){message}"):
        wrong()
    right()
