"""The route of an accelerator: which modules of core a placement passes before the plugin, each in one role."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import anyaccel
from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode, SequentialMLP, TrainPhase
from anyaccel.graph import Plan
from anyaccel.graph.device_assignment import DeviceAssigner, Request
from anyaccel.phases.bound_phase import place as place_nodes
from anyaccel.registry import Registry

ROOT = Path(anyaccel.__file__).parent
PASSES_ON = (None, "__init__", "call_hints", "containers")
"""Other code, and modules that call what they are given."""
PLUGIN = "numpy_backend"
MOST = 13


class Route:
    """The modules of core that calls pass before the first call of the plugin's function `ends`.

    `callers` has, for each module, the modules that call it; `containers` is passed over, as `map` would be.
    """

    def __init__(self, ends: str) -> None:
        self.callers: dict[str, set[str]] = {}
        self.reached = False
        self._ends = ends

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = module_of(frame)
        if event != "call" or self.reached or module in PASSES_ON:
            return
        if module.startswith(PLUGIN):
            self.reached = frame.f_code.co_name == self._ends
            return
        caller = frame.f_back
        while caller is not None and module_of(caller) in PASSES_ON:
            caller = caller.f_back
        self.callers.setdefault(module, set()).add((caller and module_of(caller)) or "the user")

    def roles(self) -> dict[str, set[str]]:
        """The callers of each module besides itself."""
        return {module: callers - {module} for module, callers in self.callers.items()}


def module_of(frame: FrameType) -> str | None:
    """The module of core that a frame runs, None for all other code."""
    path = Path(frame.f_code.co_filename)
    return ".".join(path.relative_to(ROOT).with_suffix("").parts) if path.is_relative_to(ROOT) else None


@contextmanager
def traced(ends: str) -> Iterator[Route]:
    """Trace the calls inside, up to the plugin's function `ends`."""
    route = Route(ends)
    sys.setprofile(route)
    try:
        yield route
    finally:
        sys.setprofile(None)


@pytest.fixture(autouse=True)
def _loaded() -> None:
    """Plugins and lazy imports are loaded once, which is no part of the route."""
    anyaccel.place(np.ones(1), "cpu")
    anyaccel.move({"x": np.ones(1)}, anyaccel.Accelerator("cpu"))
    assert anyaccel.scope and anyaccel.device_of(np.ones(1))


@pytest.mark.parametrize(
    ("function", "ends"),
    [
        (lambda: anyaccel.place(np.ones(3), "cpu"), "place"),
        (lambda: anyaccel.move(np.ones(3), "cpu"), "move"),
        (lambda: anyaccel.move({"x": np.ones(3), "y": [1, np.ones(2)]}, "cpu"), "move"),
        (lambda: anyaccel.Accelerator("cpu").move(np.ones(3)), "move"),
        (lambda: anyaccel.device_of(np.ones(3)), "device_of"),
        (lambda: anyaccel.scope("cpu", "numpy"), "scope"),
    ],
)
def test_a_call_goes_down_and_enters_no_module_in_two_roles(function: Callable[[], Any], ends: str) -> None:
    with traced(ends) as route:
        function()
    assert route.reached, f"{ends} of the plugin was not called"
    order = ["the user", "placement", "accelerator", "registry", "plugin_loader", "device", "specs"]
    assert set(route.callers) <= set(order)
    for module, callers in route.roles().items():
        assert len(callers) <= 1, f"{module} is entered in several roles: by {callers}"
        assert all(order.index(caller) < order.index(module) for caller in callers)


def one_node() -> tuple[ModelGraph, TrainPhase]:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((8, 3), np.float32), "y": rng.standard_normal((8, 1), np.float32)}
    data = FeatureSet.from_dict("data", arrays, features=["x"], target=["y"])
    graph = ModelGraph([ModelNode("net", SequentialMLP(), data.reference())], "sgd").build()
    return graph, TrainPhase("t", data=data, losses=[AppliedLoss("mse", on="net")], accelerator="cpu")


def test_a_node_of_a_phase_is_assigned_and_placed_by_few_modules() -> None:
    """From the shapes to the assignment, and from the assignment to the plugin's `place`."""
    graph, phase = one_node()
    assigner = DeviceAssigner(
        nodes=graph.nodes,
        shapes=graph.shapes,
        registry=anyaccel.registry.registry(),
        request=Request("t", phase.accelerator),
    )
    with traced("place") as route:
        assigned = assigner.assign({"net"})
        place_nodes(graph, {label: assignment.device for label, assignment in assigned.items()})
    assert route.reached
    assert len(route.callers) <= MOST, list(route.callers)
    roles = route.roles()
    assert roles["graph.device_assignment"] == {"the user"}
    assert roles.get("accelerator", set()) <= {"graph.device_assignment"}  # its fields are read without a call
    assert not [module for module in roles if module.startswith("requests")]  # one device is no request
    assert roles["registry"] <= {"graph.device_assignment", "phases.bound_phase"}


def test_the_backend_of_a_framework_and_kind_is_looked_up_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning and running a phase ask the registry for a computing backend in `device_assignment` only."""
    graph, phase = one_node()
    callers: set[str] = set()
    computing = Registry.computing

    def recorded(self: Registry, framework: str, kind: str | None = None) -> Any:
        caller = inspect.currentframe()
        callers.add(str(module_of(caller.f_back)) if caller and caller.f_back else "nobody")
        return computing(self, framework, kind)

    monkeypatch.setattr(Registry, "computing", recorded)
    anyaccel.Experiment("e", graph, progress="none").run_phase(phase)
    assert callers == {"graph.device_assignment"}


def test_assignments_and_columns_carry_backend_and_handle_but_a_plan_is_plain_data() -> None:
    graph, phase = one_node()
    plan: Plan = anyaccel.Experiment("e", graph).plan(phase)
    backend = anyaccel.registry.registry().computing("numpy", "cpu")
    assert all(entry.backend is backend for entry in (*plan.assignments, *plan.columns))
    assert all(entry.native_device == "cpu" for entry in (*plan.assignments, *plan.columns))
    plain = plan.to_dict()
    assert not {"backend", "native_device"} & {
        key for entry in plain["assignments"] + plain["columns"] for key in entry
    }
    assert "backend" not in repr(plan["net"])
    assert plan == anyaccel.Experiment("e", graph).plan(phase)
