"""Modules that torch has wrapped or made of others: they train as by hand, and are saved under their plain names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel_torch import TorchBackend
from anyaccel_torch.module_traits import batch_coupling

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
X = np.random.default_rng(0).normal(size=(32, 6)).astype("f4")
LOSSES = [aa.AppliedLoss("mse", on="net")]


class Holds(nn.Module):
    """Has a module inside, and a layer after it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x))


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])


def graph_of(model: object, optimizer: str = "adam") -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, data().reference())], aa.Optimizer(optimizer, lr=0.1))


def phase(**settings: object) -> aa.TrainPhase:
    keywords = {"sampler": aa.SimpleSampler(16), "epochs": 2, "accelerator": "cpu", "compile": "off"} | settings
    return aa.TrainPhase("t", data="all", losses=LOSSES, **keywords)


def by_hand(model: nn.Module) -> list[float]:
    """The losses of two epochs of SGD, and that of an evaluation."""
    optimizer, figures = torch.optim.SGD(model.parameters(), 0.1), list[float]()
    x, y = torch.tensor(X), torch.tensor(X[:, :1])
    model.train()
    for _ in range(2):
        total = 0.0
        for rows in (slice(0, 16), slice(16, 32)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() / 2
        figures.append(total)
    model.eval()
    with torch.no_grad():
        return [*figures, nn.functional.mse_loss(model(x), y).item()]


SHAPE = torch.ones(3, 6)
WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "script": lambda: torch.jit.script(made()),
    "trace": lambda: torch.jit.trace(made(), SHAPE, check_trace=False),
    "script_inside": lambda: Holds(torch.jit.script(made())),
    "fx": lambda: torch.fx.symbolic_trace(made()),
    "compiled": lambda: torch.compile(made(), backend="eager"),
    "compiled_inside": lambda: Holds(torch.compile(made(), backend="eager")),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_modules_train_and_evaluate_as_by_hand(name: str) -> None:
    graph, expected = graph_of(WRAPPED[name](), "sgd"), by_hand(WRAPPED[name]())
    losses = graph.run(phase(), progress="none").loss.tolist()
    value = graph.run(aa.EvalPhase("v", data="all", losses=LOSSES, accelerator="cpu"), progress="none").loss
    np.testing.assert_allclose([*losses, value], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["script", "trace", "compiled", "compiled_inside"])
def test_wrapped_modules_are_saved_under_the_names_of_the_plain_module(name: str, tmp_path: Path) -> None:
    plain = Holds(made()) if name == "compiled_inside" else made()
    graph = graph_of(WRAPPED[name]())
    graph.run(phase(), progress="none")
    names = graph.save_weights(tmp_path / "weights.safetensors")
    graph.save(tmp_path / "graph")
    assert set(names) == set(plain.state_dict())
    assert aa.ModelGraph.load(tmp_path / "graph", models={"net": plain}).state().keys() == graph.state().keys()
    trained = [tensor.detach().clone() for tensor in graph.nodes["net"].model.parameters()]
    assert all(map(torch.equal, plain.parameters(), trained))
    fresh = Holds(made()) if name == "compiled_inside" else made()
    graph_of(fresh).load_weights(tmp_path / "weights.safetensors")
    assert all(map(torch.equal, fresh.parameters(), trained))


def _as_before(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state as it was written when names were those of the wrapper."""
    before = {}
    for name, array in arrays.items():
        head, is_value, last = name.rpartition("/")
        has_name = name.startswith(("net/parameters/", "net/buffers/", "net/optimizer/"))
        before[f"{head}{is_value}_orig_mod.{last}" if has_name else name] = array
    return before


@pytest.mark.parametrize("is_compiled", [True, False])
def test_states_of_before_with_the_names_of_the_wrapper_still_load(is_compiled: bool) -> None:
    graph = graph_of(made())
    graph.run(phase(), progress="none")
    other = graph_of(torch.compile(made(), backend="eager") if is_compiled else made())
    before = _as_before(graph.state())
    assert "net/optimizer/m/_orig_mod.0.weight" in before
    other.load_state(before)
    loaded, wanted = other.state(), graph.state()
    assert loaded.keys() == wanted.keys()
    assert all(np.array_equal(loaded[name], wanted[name]) for name in wanted)


def test_files_of_before_with_the_names_of_the_wrapper_still_load(tmp_path: Path) -> None:
    plain = made()
    torch.save(torch.compile(plain, backend="eager").state_dict(), tmp_path / "weights.pt")
    for target in (copy.deepcopy(plain), torch.compile(copy.deepcopy(plain), backend="eager")):
        nn.init.zeros_(next(target.parameters()))
        graph = graph_of(target)
        assert not graph.load_weights(tmp_path / "weights.pt").unexpected_keys
        assert torch.equal(next(target.parameters()), plain[0].weight)


def test_averages_of_before_go_on_under_plain_names() -> None:
    average = aa.WeightAveraging(0.5)
    graph = graph_of(made())
    graph.run(phase(epochs=1, callbacks=[average]), progress="none")
    state = {
        ("net/parameters/_orig_mod.0.weight" if name == "net/parameters/0.weight" else name): value
        for name, value in average.state_dict().items()
    }
    resumed = aa.WeightAveraging(0.5)
    resumed.load_state_dict(state)
    graph.run(phase(epochs=1, callbacks=[resumed, average]), progress="none")
    wanted, got = average.state_dict(), resumed.state_dict()
    assert got.keys() == wanted.keys()
    assert all(np.array_equal(got[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("name", ["script", "trace", "script_inside", "fx", "compiled_inside"])
def test_batch_normalization_is_seen_in_wrapped_modules(name: str) -> None:
    """Or out of memory would split its batches."""
    assert batch_coupling(WRAPPED[name]()) == "BatchNorm1d"


def test_a_name_that_only_ends_like_a_wrapper_stays() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.my_orig_mod = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.my_orig_mod(x)

    assert set(TorchBackend().state(Net())) == {
        "parameters/my_orig_mod.weight",
        "parameters/my_orig_mod.bias",
    }
