"""Optimizer state between phases: equal to a loop by hand with one optimizer, whatever the optimizer keeps."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel_torch.optimizer_state import decode, encode, names_of

ROWS, BATCH = 24, 8


class Own(torch.optim.Optimizer):
    """The base of optimizers that keep their state in the manners of others."""

    def __init__(self, params: Any, lr: float, **defaults: Any) -> None:
        super().__init__(params, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self.begin(group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * self.update(group, self.state[parameter], parameter))

    def begin(self, group: dict[str, Any]) -> None:
        """Before the parameters of a group."""

    def update(self, group: dict[str, Any], state: dict[str, Any], parameter: Any) -> Any:
        raise NotImplementedError


class StepOfGroup(Own):
    """As Adan: the group counts the steps, and the first is told by a previous gradient that is missing."""

    def begin(self, group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1

    def update(self, group: dict[str, Any], state: dict[str, Any], parameter: Any) -> Any:
        previous = state.setdefault("previous_grad", parameter.grad.clone())
        difference = parameter.grad - previous
        state["previous_grad"] = parameter.grad.clone()
        return (parameter.grad + difference) / group["step"]


class NumbersOfParameter(Own):
    """As LaProp: floats and an integer step for each parameter, which start as other types."""

    def update(self, group: dict[str, Any], state: dict[str, Any], parameter: Any) -> Any:
        state["step"] = state.get("step", 0) + 1
        state["scale"] = 0.9 * state.get("scale", 0) + 0.1 * group["lr"]
        state["amsgrad"] = None
        return parameter.grad * (1 + state["scale"]) / state["step"]


class DistanceOfGroup(Own):
    """As Prodigy: the first values, scalar where they are zero, and a tensor of the group that estimates the rate."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr, d=1e-1, numerator=torch.zeros(2))

    def update(self, group: dict[str, Any], state: dict[str, Any], parameter: Any) -> Any:
        if "p0" not in state:
            state["p0"] = parameter.flatten()[::2].clone() if parameter.any() else torch.tensor(0.0)
        group["numerator"] += float((parameter.flatten()[::2] - state["p0"]).sum())
        group["d"] = max(group["d"], 0.1 + float(group["numerator"].abs().max()))
        return group["d"] * parameter.grad


class Containers(Own):
    """Keeps a deque of tensors, a dict and a list for each parameter, a list of numbers in the group, and its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr, buffer=[[None, None], [None, 1.0]])
        self.calls: list[int] = []

    def begin(self, group: dict[str, Any]) -> None:
        self.calls.append(len(self.calls))
        group["buffer"] = [*group["buffer"][1:], [self.calls[-1], float(len(self.calls))]]

    def update(self, group: dict[str, Any], state: dict[str, Any], parameter: Any) -> Any:
        history = state.setdefault("history", deque(maxlen=3))
        history.append(parameter.grad.clone())
        kinds = state.setdefault("kinds", {"last": "none", "count": (0, True)})
        kinds["last"], kinds["count"] = "sum", (kinds["count"][0] + 1, True)
        assert isinstance(kinds["count"], tuple) and history.maxlen == 3
        return sum(history) * group["buffer"][1][1] / (1 + kinds["count"][0] + self.calls[-1])


CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    **{cls.__name__: (cls, {}) for cls in (StepOfGroup, NumbersOfParameter, DistanceOfGroup, Containers)},
    "Adafactor": (torch.optim.Adafactor, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "RAdam": (torch.optim.RAdam, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "Rprop": (torch.optim.Rprop, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
}
OF_OTHERS = ("Adan", "AdaBelief", "LaProp", "Prodigy", "AdaBound", "Lion", "Yogi", "Adai", "DAdaptAdam", "Ranger")


def table(columns: int = 3) -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(ROWS, columns)), "y": draw.normal(size=(ROWS, 1))}
    return aa.FeatureSet.from_dict("data", {k: v.astype("float32") for k, v in arrays.items()}, ["x"], ["y"])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def by_hand(model: nn.Module, data: aa.FeatureSet, optimizer: Any, scheduler: Any = None) -> None:
    """One epoch."""
    x, y = (torch.tensor(data.array(name)).reshape(ROWS, -1) for name in ("x", "y"))
    for start in range(0, ROWS, BATCH):
        optimizer.zero_grad()
        F.mse_loss(model(x[start : start + BATCH]), y[start : start + BATCH]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def graph_of(model: nn.Module, data: aa.FeatureSet, optimizer: aa.Optimizer) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer)


def run(graph: aa.ModelGraph, **settings: Any) -> None:
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), compile="off", **settings)
    aa.Experiment("e", graph, progress="none").run_phase(phase)


def assert_equal(first: nn.Module, second: nn.Module) -> None:
    for (name, value), other in zip(first.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-6, atol=1e-7, msg=f"{name} differs")


def check_phases(
    cls: Any, settings: dict[str, Any], *, through_state: bool, make: Callable[[], nn.Module] = net
) -> None:
    data, model = table(), make()
    reference = copy.deepcopy(model)
    optimizer = cls(reference.parameters(), lr=0.05, **settings)
    graph = graph_of(model, data, aa.Optimizer(cls, lr=0.05, **settings))
    for _ in range(3):
        by_hand(reference, data, optimizer)
        run(graph)
        if through_state:
            saved = {name: np.array(array) for name, array in graph.state().items()}
            graph = graph_of(make(), data, aa.Optimizer(cls, lr=0.05, **settings))
            graph.load_state(saved)
    assert_equal(graph["net"].model, reference)


@pytest.mark.parametrize("through_state", [False, True], ids=["in one graph", "through a saved state"])
@pytest.mark.parametrize("name", CLASSES)
def test_phases_continue_what_an_optimizer_class_keeps(name: str, through_state: bool) -> None:
    cls, settings = CLASSES[name]
    check_phases(cls, settings, through_state=through_state)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_OTHERS)
def test_phases_continue_optimizers_of_other_packages(name: str) -> None:
    package = pytest.importorskip("pytorch_optimizer")
    check_phases(getattr(package, name), {}, through_state=True)


class Sparse(nn.Module):
    """Embeddings with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(7, 3, sparse=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.rows((x.abs() * 3).long() % 7).sum((1, 2))[:, None]


@pytest.mark.parametrize("through_state", [False, True])
def test_phases_continue_sparse_adam(through_state: bool) -> None:
    check_phases(torch.optim.SparseAdam, {}, through_state=through_state, make=Sparse)


# -- parameters that are switched off for a phase ----------------------------------------------------------------------

NAMED = {
    "adam": (aa.Optimizer("adam", lr=0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    "adamw": (aa.Optimizer("adamw", lr=0.05), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01)),
    "momentum": (aa.Optimizer("momentum", lr=0.05), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    **{
        name: (
            aa.Optimizer(cls, lr=0.05, **settings),
            lambda p, cls=cls, settings=settings: cls(p, lr=0.05, **settings),
        )
        for name, (cls, settings) in CLASSES.items()
    },
}


@pytest.mark.parametrize("off", ["0.weight", "2.bias", "every parameter of the first layer"])
@pytest.mark.parametrize("name", NAMED)
def test_a_parameter_that_is_switched_off_for_a_phase_goes_on_where_it_was(name: str, off: str) -> None:
    spec, create = NAMED[name]
    data, model = table(), net()
    reference = copy.deepcopy(model)
    optimizer, graph = create(list(reference.parameters())), graph_of(model, data, spec)
    names = [off] if "." in off else ["0.weight", "0.bias"]
    for trained in (True, False, True, True):
        for module in (model, reference):
            for parameter in names:
                module.get_parameter(parameter).requires_grad_(trained)
        by_hand(reference, data, optimizer)
        run(graph)
    assert_equal(model, reference)


def test_a_node_whose_parameters_are_all_switched_off_keeps_its_state() -> None:
    data = table()
    torch.manual_seed(0)
    body, head = nn.Linear(3, 4), nn.Linear(4, 1)
    reference = copy.deepcopy(nn.Sequential(body, head))
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.05)
    nodes = [aa.ModelNode("body", body, data.reference()), aa.ModelNode("net", head, "body")]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=0.05))
    for trained in (True, False, True):
        body.requires_grad_(trained)
        reference[0].requires_grad_(trained)
        by_hand(reference, data, optimizer)
        run(graph)
    assert_equal(nn.Sequential(body, head), reference)


class Partly(nn.Module):
    """Uses its second layer only where asked to, so that it gets fewer gradients than there are steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.both = nn.Linear(3, 1), nn.Linear(3, 1), True

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x) + self.second(x) if self.both else self.first(x)


def test_a_parameter_with_fewer_steps_than_its_node_keeps_its_own_count() -> None:
    data, model = table(), Partly()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.05)
    graph = graph_of(model, data, aa.Optimizer("adam", lr=0.05))
    for both in (True, False, True, True):
        model.both = reference.both = both
        by_hand(reference, data, optimizer)
        run(graph)
    assert_equal(model, reference)


class Lazy(torch.optim.Optimizer):
    """Momentum whose state begins with the first gradient of a parameter, as a test of membership tells."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter not in self.state:
                    self.state[parameter] = {"velocity": torch.zeros_like(parameter)}
                velocity = self.state[parameter]["velocity"].mul_(0.9).add_(parameter.grad)
                parameter.sub_(velocity, alpha=group["lr"])


class ReadsAndSwitches(aa.Callback):
    """Read the optimizer's state after each epoch, and train all parameters from then on."""

    def epoch_end(self, run: Any) -> None:
        assert "net/optimizer/velocity/first.weight" in run.graph.state()
        run.graph["net"].model.both = True


def test_reading_states_in_a_run_changes_nothing_for_parameters_without_gradients() -> None:
    data, model = table(), Partly()
    model.both = False
    reference = copy.deepcopy(model)
    optimizer = Lazy(reference.parameters(), lr=0.05)
    graph = graph_of(model, data, aa.Optimizer(Lazy, lr=0.05))
    for _ in range(2):
        by_hand(reference, data, optimizer)
        reference.both = True
    run(graph, epochs=2, callbacks=[ReadsAndSwitches()])
    assert_equal(model, reference)


# -- groups with rates of their own ------------------------------------------------------------------------------------


class TwoRates(torch.optim.Adam):
    """Weights and biases in groups with rates of their own."""

    def __init__(self, params: Any, lr: float) -> None:
        params = list(params)
        matrices, vectors = ([p for p in params if (p.ndim > 1) is wide] for wide in (True, False))
        super().__init__([{"params": matrices}, {"params": vectors, "lr": 10 * lr}], lr=lr)


def test_a_schedule_multiplies_the_rate_of_each_group() -> None:
    data, model = table(), net()
    reference = copy.deepcopy(model)
    optimizer = TwoRates(reference.parameters(), lr=0.01)
    schedule = aa.Schedule("exponential", rate=0.8, every=2, warmup=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    graph = graph_of(model, data, aa.Optimizer(TwoRates, lr=0.01, schedule=schedule))
    for _ in range(2):
        by_hand(reference, data, optimizer, scheduler)
        run(graph)
    assert_equal(model, reference)


# -- values as tensors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [1, 0.5, True, "text", None, float("inf"), [], (1, [2.0, None]), {"a": 1, 2: (3,)}, deque([1, 2], maxlen=4)],
    ids=str,
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    slots = encode("key", value)
    (back,) = decode(slots, {}, torch.device("cpu")).values()
    assert back == value and type(back) is type(value) and names_of(slots) == {"key"}
    assert getattr(back, "maxlen", 4) == 4


def test_tensors_in_containers_come_back_as_copies() -> None:
    tensors = [torch.arange(3.0), torch.tensor(2)]
    back = decode(encode("key", {"all": tensors}), {}, torch.device("cpu"))["key"]["all"]
    assert all(torch.equal(*pair) and pair[0] is not pair[1] for pair in zip(back, tensors, strict=True))


@pytest.mark.parametrize(
    "value", [object(), [object()], nn.Parameter(torch.zeros(1)), {1: [nn.Parameter(torch.zeros(1))]}]
)
def test_other_objects_are_no_tensors(value: Any) -> None:
    with pytest.raises(TypeError):
        encode("key", value)
