"""Optimizers follow docs/reference/formulas.md and torch's own, and their state continues between phases."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyaccel.errors import SpecError
from anyaccel.segment import NodeState, ParameterGroup
from anyaccel.specs import Optimizer, Schedule
from anyaccel_torch.optimizers import GroupOptimizer, create_optimizer, expected_slots

RECIPES = [
    Optimizer("sgd", lr=0.1),
    Optimizer("sgd", lr=0.1, weight_decay=0.01, nesterov=True),
    Optimizer("momentum", lr=0.1, weight_decay=0.01),
    Optimizer("momentum", lr=0.1, momentum=0.7, nesterov=True),
    Optimizer("adam", lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01),
    Optimizer("adamw", lr=0.1, weight_decay=0.1),
    Optimizer("adam", lr=0.1, schedule=Schedule("cosine", steps=8, warmup=3)),
    Optimizer("momentum", lr=0.1, schedule=Schedule("exponential", rate=0.5), clip_norm=0.5),
]


def group_of(recipe: Optimizer, parameters: dict[str, nn.Parameter], state: NodeState | None = None) -> GroupOptimizer:
    states = {} if state is None else {"a": state}
    return GroupOptimizer(ParameterGroup("g", recipe, ("a",)), {"a": parameters}, states)


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    shapes = {"w": (3, 2), "b": (3,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype))
        for name, shape in shapes.items()
    }


def gradients(step: int, like: dict[str, Any]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    return {name: random.normal(size=tuple(value.shape)) for name, value in like.items()}


def by_formula(recipe: Optimizer, values: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """The formulas in plain NumPy."""
    values, slots = {name: value.copy() for name, value in values.items()}, {}
    torch_settings = dict(recipe.settings)
    for t in range(1, steps + 1):
        grads = gradients(t, values)
        if recipe.clip_norm is not None:
            norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
            grads = {name: g * min(1.0, recipe.clip_norm / (norm + 1e-6)) for name, g in grads.items()}
        lr, decay = recipe.rate(t - 1), torch_settings["weight_decay"]
        for name, g in grads.items():
            w = values[name]
            if recipe.name == "adamw":
                w = w * (1 - lr * decay)
            else:
                g = g + decay * w
            if "betas" in torch_settings:
                (b1, b2), (m, v) = torch_settings["betas"], slots.get(name, (0.0, 0.0))
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                slots[name] = m, v
                w = w - lr / (1 - b1**t) * m / (np.sqrt(v) / math.sqrt(1 - b2**t) + torch_settings["eps"])
            elif torch_settings["momentum"] > 0:
                velocity = torch_settings["momentum"] * slots.get(name, 0.0) + g
                slots[name] = velocity
                w = w - lr * (g + torch_settings["momentum"] * velocity if torch_settings["nesterov"] else velocity)
            else:
                w = w - lr * g
            values[name] = w
    return values


def run(group: GroupOptimizer, named: dict[str, nn.Parameter], first: int, last: int) -> None:
    step = group.stepper(clip=True)
    for t in range(first, last + 1):
        for name, g in gradients(t, named).items():
            named[name].grad = torch.tensor(g, dtype=named[name].dtype)
        step()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.name}-{r.schedule.name}-{len(r.settings)}")
def test_steps_follow_the_formula(recipe: Optimizer) -> None:
    named = parameters()
    expected = by_formula(recipe, {name: p.detach().numpy() for name, p in named.items()}, 10)
    run(group_of(recipe, named), named, 1, 10)
    for name, value in expected.items():
        np.testing.assert_allclose(named[name].detach().numpy(), value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("recipe", "plain"),
    [
        (Optimizer("momentum", lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)),
        (Optimizer("adam", lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1, fused=True)),
        (Optimizer("adamw", lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01, fused=True)),
        (Optimizer(torch.optim.RMSprop, lr=0.1, alpha=0.5), lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.5)),
    ],
)
def test_steps_equal_torchs_bit_for_bit(recipe: Optimizer, plain: Any) -> None:
    actual, reference = parameters(torch.float32), parameters(torch.float32)
    optimizer = plain(list(reference.values()))
    run(group_of(recipe, actual), actual, 1, 5)
    for t in range(1, 6):
        for name, g in gradients(t, reference).items():
            reference[name].grad = torch.tensor(g, dtype=torch.float32)
        optimizer.step()
    assert all(torch.equal(actual[name], reference[name]) for name in actual)


@pytest.mark.parametrize("recipe", [*RECIPES, Optimizer(torch.optim.RMSprop), Optimizer(torch.optim.NAdam)], ids=str)
def test_continuing_from_a_state_equals_never_stopping(recipe: Optimizer) -> None:
    whole, parted = parameters(), parameters()
    run(group_of(recipe, whole), whole, 1, 7)
    first = group_of(recipe, parted)
    run(first, parted, 1, 4)
    state = first.states(copies=False)["a"]
    kept = {name: {slot: value.clone() for slot, value in slots.items()} for name, slots in state.slots.items()}
    run(group_of(recipe, parted, state), parted, 5, 7)
    for name in whole:
        torch.testing.assert_close(parted[name], whole[name], rtol=1e-12, atol=1e-12)
        for slot, value in kept.get(name, {}).items():  # the state that was given is not written to
            assert torch.equal(state.slots[name][slot], value)


@pytest.mark.parametrize(
    ("recipe", "slots"),
    [
        (Optimizer("sgd"), set()),
        (Optimizer("momentum"), {"velocity"}),
        (Optimizer("adam"), {"m", "v"}),
        (Optimizer(torch.optim.RMSprop), {"square_avg"}),
        (Optimizer(torch.optim.ASGD), {"eta", "mu", "ax"}),
    ],
)
def test_slot_names_of_each_optimizer(recipe: Optimizer, slots: set[str]) -> None:
    named = parameters()
    group = group_of(recipe, named)
    run(group, named, 1, 3)
    state = group.states(copies=True)["a"]
    assert state.step == 3
    assert {name: set(kept) for name, kept in state.slots.items()} == (dict.fromkeys(named, slots) if slots else {})
    assert {frozenset(slots)} == {it.names for it in expected_slots(recipe, group.parameters, {}).values()}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Optimizer("adam"), Optimizer("momentum")),
        (Optimizer("adam"), Optimizer("sgd")),
        (Optimizer("sgd"), Optimizer("adam")),
        (Optimizer("adam"), Optimizer(torch.optim.RMSprop)),
        (Optimizer(torch.optim.RMSprop), Optimizer("adam")),
    ],
)
def test_state_of_another_optimizer_is_ignored(before: Optimizer, after: Optimizer) -> None:
    named, fresh = parameters(), parameters()
    group = group_of(before, named)
    run(group, named, 1, 2)
    for name in named:
        named[name].data.copy_(fresh[name].data)
    second, alone = group_of(after, named, group.states(copies=True)["a"]), group_of(after, fresh)
    run(second, named, 1, 2)
    run(alone, fresh, 1, 2)
    assert all(torch.equal(named[name], fresh[name]) for name in named)
    assert second.states(copies=True)["a"].step == 2


def test_state_of_other_shapes_is_ignored() -> None:
    odd = NodeState(5, {"w": {"velocity": torch.ones(9)}})
    assert group_of(Optimizer("momentum"), parameters(), odd).states(copies=True)["a"].step == 0


def test_parameter_may_get_its_first_gradient_later() -> None:
    named = parameters()
    group = group_of(Optimizer("momentum", lr=0.1), named)
    step = group.stepper(clip=True)
    named["w"].grad = torch.ones_like(named["w"])
    step()
    before = named["b"].detach().clone()
    named["b"].grad = torch.ones_like(named["b"])
    step()
    torch.testing.assert_close(named["b"].detach(), before - 0.1)


def group_of_three(recipe: Optimizer) -> tuple[GroupOptimizer, dict[str, dict[str, nn.Parameter]]]:
    """A group of three nodes, each with a parameter."""
    members = {node: {"w": nn.Parameter(torch.ones(2, dtype=torch.float64))} for node in "abc"}
    return GroupOptimizer(ParameterGroup("g", recipe, tuple(members)), members, {}), members


def step_nodes(group: GroupOptimizer, members: dict[str, dict[str, nn.Parameter]], nodes: str) -> dict[str, float]:
    """How far each node moves in a step in which some of them have a gradient of one."""
    before = {node: named["w"].detach().clone() for node, named in members.items()}
    for node, named in members.items():
        named["w"].grad = torch.ones_like(named["w"]) if node in nodes else None
    group.step_scaled()
    return {node: round(float((before[node] - named["w"].detach()).max()), 9) for node, named in members.items()}


def test_learning_rate_follows_the_steps_of_each_node() -> None:
    group, members = group_of_three(Optimizer("sgd", lr=1.0, schedule=Schedule("exponential", rate=0.5)))
    assert step_nodes(group, members, "abc") == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert step_nodes(group, members, "a") == {"a": 0.5, "b": 0.0, "c": 0.0}
    kept = group.snapshot()
    for _ in range(2):
        assert step_nodes(group, members, "abc") == {"a": 0.25, "b": 0.5, "c": 0.5}
        assert step_nodes(group, members, "bc") == {"a": 0.0, "b": 0.25, "c": 0.25}
        assert step_nodes(group, members, "ac") == {"a": 0.125, "b": 0.0, "c": 0.125}
        group.restore(kept)
    assert {node: state.step for node, state in group.states(copies=True).items()} == {"a": 2, "b": 1, "c": 1}


class Counted(torch.optim.SGD):
    """Records how many parameters each of its groups has at each step."""

    steps: ClassVar[list[list[int]]] = []

    def step(self, closure: Any = None) -> Any:
        self.steps.append([len(group["params"]) for group in self.param_groups])
        return super().step(closure)


def test_nodes_with_equal_steps_are_updated_together() -> None:
    """With a schedule, too, one kernel updates all of them."""
    Counted.steps.clear()
    group, members = group_of_three(Optimizer(Counted, lr=0.1, schedule=Schedule("exponential", rate=0.5)))
    for nodes in ("abc", "abc", "b", "abc"):
        step_nodes(group, members, nodes)
    assert Counted.steps == [[3], [3], [3], [2, 1]]


class Halves(torch.optim.SGD):
    """Splits its parameters into groups of its own."""

    def __init__(self, params: Any, lr: float) -> None:
        first, *others = params
        super().__init__([{"params": [first]}, {"params": others}], lr=lr)


def test_optimizer_with_several_groups_has_a_schedule() -> None:
    group, members = group_of_three(Optimizer(Halves, lr=1.0, schedule=Schedule("exponential", rate=0.5)))
    assert step_nodes(group, members, "abc") == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert step_nodes(group, members, "ab") == {"a": 0.5, "b": 0.5, "c": 0.0}
    assert step_nodes(group, members, "abc") == {"a": 0.25, "b": 0.25, "c": 0.5}


def test_step_of_a_loaded_state_is_on_torchs_device() -> None:
    slots = {"w": {"square_avg": torch.zeros(3, 2)}}
    named = {"w": nn.Parameter(torch.zeros(3, 2))}
    group = group_of(Optimizer(torch.optim.RMSprop, lr=0.1), named, NodeState(4, slots))
    run(group, named, 1, 1)
    assert group.states(copies=True)["a"].step == 5
    moved = {"w": nn.Parameter(torch.zeros(3, 2, device="meta"))}
    snapshot = group_of(Optimizer(torch.optim.RMSprop, lr=0.1), moved, NodeState(4, slots)).snapshot().optimizer
    assert snapshot is not None
    kept = snapshot.state[moved["w"]]
    assert kept["square_avg"].is_meta and kept["step"].device.type == "cpu" and kept["step"].item() == 4


# -- the rest --------------------------------------------------------------------------------------------------------


def test_kernels_are_fused_where_torch_supports_it() -> None:
    plain, whole = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert create_optimizer(Optimizer("adam"), [plain]).defaults["fused"] is True
    assert create_optimizer(Optimizer("adam"), [plain, whole]).defaults["foreach"] is True
    mixed = [plain, nn.Parameter(torch.zeros(2, device="meta"))]
    assert create_optimizer(Optimizer("sgd"), mixed).defaults["foreach"] is True


def test_grad_stats_and_scaled_steps() -> None:
    named = {
        "w": nn.Parameter(torch.zeros(2)),
        "b": nn.Parameter(torch.zeros(1)),
        "unused": nn.Parameter(torch.zeros(1)),
    }
    group = group_of(Optimizer("sgd", lr=1.0), named)
    square, finite = group.grad_stats()
    assert (square.item(), finite.item()) == (0, True)
    named["w"].grad, named["b"].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    square, finite = group.grad_stats()
    assert square.item() == pytest.approx(169) and finite.item()
    group.step_scaled(torch.tensor(0.5))
    assert named["w"].tolist() == [-1.5, -2] and named["unused"].tolist() == [0]
    named["w"].grad, named["b"].grad = torch.tensor([1e25, 0.0]), torch.tensor([float("nan")])
    assert not group.grad_stats()[1]
    named["b"].grad = torch.tensor([0.0])
    assert group.grad_stats()[1], "the square is too large for float32, the gradient is finite"


def test_group_without_parameters_does_nothing() -> None:
    group = group_of(Optimizer("adam"), {})
    group.step_scaled()
    group.restore(group.snapshot())
    assert group.grad_stats()[1] and group.states(copies=True) == {"a": NodeState(0, {})}


class NeedsClosure(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Optimizer(dict), r"dict is not an optimizer of torch\. Available: sgd, .*Hint: use one"),
        (Optimizer(torch.optim.LBFGS), r"LBFGS needs a closure that computes the loss.*Hint: use another"),
        (Optimizer(NeedsClosure), r"NeedsClosure needs a closure that computes the loss"),
        (
            Optimizer(torch.optim.RMSprop, speed=1),
            r"RMSprop cannot be created with settings lr, speed: .*'speed'",
        ),
        (
            Optimizer(torch.optim.RMSprop, alpha=-1),
            r"RMSprop .* settings lr, alpha: Invalid alpha value: -1",
        ),
    ],
)
def test_unusable_optimizers_raise_spec_error(recipe: Optimizer, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        create_optimizer(recipe, [nn.Parameter(torch.zeros(1))])


def test_optimizer_whose_trial_step_fails_starts_afresh() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Tensor | None:  # type: ignore[override]
            raise ValueError

    parameter = nn.Parameter(torch.zeros(1))
    with pytest.warns(UserWarning, match="fails in a trial step"):
        expected = expected_slots(Optimizer(Fails, lr=1.0), [parameter], {})
    assert expected[parameter].names == set()


# -- counters of optimizer classes of one's own ----------------------------------------------------------------------


class Counters(torch.optim.Optimizer):
    """Its steps depend on plain numbers in the state, in the groups and in the object, and on a tensor in a group."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "k": 0})
        self.calls, self.log = 0, [0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        self.log.append(self.calls)
        for group in self.param_groups:
            group["k"] += 1
            group["decay"] = 0.9 * group.get("decay", torch.ones(()))
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"], state["count"] = state.get("step", 0) + 1, state.get("count", 0) + 1
                    assert isinstance(state["step"], int) and isinstance(state["count"], int)
                    divisor = group["k"] + state["step"] + state["count"] + self.calls + self.log[-1]
                    parameter.sub_(group["decay"] * group["lr"] * parameter.grad / divisor)


def test_counters_of_an_optimizer_class_last_between_phases() -> None:
    recipe, whole, parted = Optimizer(Counters, lr=1.0), parameters(), parameters()
    run(group_of(recipe, whole), whole, 1, 6)
    first = group_of(recipe, parted)
    run(first, parted, 1, 2)
    state = first.states(copies=True)["a"]
    assert set(state.slots["w"]) == {"count", "group.k", "group.decay", "object.calls", "object.log.json"}
    assert set(state.slots["b"]) == set(state.slots["w"]) - {"object.log.json"}, "kept once"
    second = group_of(recipe, parted, state)
    run(second, parted, 3, 6)
    for name in whole:
        assert torch.equal(whole[name], parted[name]), name


def test_counters_of_an_optimizer_class_go_back_with_a_snapshot() -> None:
    recipe, whole, again = Optimizer(Counters, lr=1.0), parameters(), parameters()
    run(group_of(recipe, whole), whole, 1, 4)
    group = group_of(recipe, again)
    run(group, again, 1, 2)
    values, kept = {name: value.detach().clone() for name, value in again.items()}, group.snapshot()
    for _ in range(2):
        run(group, again, 3, 5)
        group.restore(kept)
        for name, value in values.items():
            again[name].data.copy_(value)
    run(group, again, 3, 4)
    for name in whole:
        assert torch.equal(whole[name], again[name]), name


class Remembers(torch.optim.SGD):
    """Keeps an object for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("history", object())
        return super().step(closure)


def test_state_that_does_not_last_between_phases_is_told() -> None:
    named, recipe = parameters(), Optimizer(Remembers, lr=0.1)
    with pytest.warns(
        UserWarning, match=r"optimizer Remembers keeps history \(object\) for each parameter, which is lost in a new"
    ) as warned:
        group_of(recipe, named, NodeState(1, {"w": {"group.k": torch.tensor(1)}}))
    assert [warning.filename for warning in warned] == [__file__]  # the code that calls anyaccel


def test_an_optimizer_that_fails_in_a_trial_step_is_told_and_starts_afresh() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Tensor | None:  # type: ignore[override]
            raise ValueError

    with pytest.warns(
        UserWarning, match="Fails fails in a trial step with zero gradients, so its state is unknown"
    ) as warned:
        group_of(Optimizer(Fails, lr=1.0), parameters(), NodeState(1, {"w": {"m": torch.zeros(3, 2)}}))
    assert [warning.filename for warning in warned] == [__file__]
