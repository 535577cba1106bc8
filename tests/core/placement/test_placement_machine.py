"""Objects placed and moved over simulated devices in any order, checked against a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from hypothesis_profiles import examples

from anyaccel import accelerator, placement
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, DeviceMismatchError
from anyaccel.plugin_testing import Cell, TinyBackend, plugin_module
from anyaccel.registry import Registry

SIMS = ("sim:0", "sim:1", "sim:2")


@dataclass(frozen=True)
class Record:
    """One more thing that holds tensors."""

    first: Any
    rest: Any


shapes = st.sampled_from([lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: {"a": a, "b": {"deep": b}}, Record])


def cells(value: Any) -> list[Cell]:
    """Every cell below, found without the code under test."""
    if isinstance(value, Cell):
        return [value]
    if isinstance(value, Record):
        return cells(value.first) + cells(value.rest)
    items = value.values() if isinstance(value, dict) else value
    return [cell for item in items for cell in cells(item)]


class PlacementMachine(RuleBasedStateMachine):
    """The bundle holds (object, model), where the model is the (value, device) of each of its cells."""

    things = Bundle("things")

    def __init__(self) -> None:
        super().__init__()
        self.sims = TinyBackend("simulated", ("cpu", *SIMS))
        self.small = TinyBackend("small", ("cpu", "sim:0"))
        registry = Registry(lambda: TinyBackend("numpy"), lambda: ())
        for backend in (self.sims, self.small):
            registry.register(plugin_module(backend.framework, backends=lambda b=backend: [b]), backend.framework)
        self.patch = pytest.MonkeyPatch()
        for module in (accelerator, placement):
            self.patch.setattr(module, "registry", lambda: registry)

    def teardown(self) -> None:
        self.patch.undo()

    @rule(target=things, value=st.integers(), small=st.booleans())
    def make(self, value: int, small: bool) -> Any:
        return (self.small if small else self.sims).new(value), [(value, "cpu:0")]

    @rule(target=things, value=st.integers(), where=st.sampled_from(SIMS))
    def make_in_scope(self, value: int, where: str) -> Any:
        with placement.scope(where, "simulated"):
            return self.sims.new(value), [(value, where)]

    @rule(target=things, shape=shapes, one=things, two=things)
    def hold(self, shape: Any, one: Any, two: Any) -> Any:
        return shape(one[0], two[0]), one[1] + two[1]

    @rule(target=things, thing=consumes(things), where=st.sampled_from(("cpu", *SIMS)))
    def move(self, thing: Any, where: str) -> Any:
        obj, model = thing
        where = str(Device.parse(where))
        before = [(cell.value, str(cell.device)) for cell in cells(obj)]
        if where in ("sim:1", "sim:2") and any(isinstance(cell, self.small.cell) for cell in cells(obj)):
            with pytest.raises(AnyaccelError):
                placement.move(obj, where)
            assert [(cell.value, str(cell.device)) for cell in cells(obj)] == before
            return multiple(thing)
        moved = placement.move(obj, where)
        assert (moved is obj) == all(device == where for _, device in model)
        assert type(moved) is type(obj)
        assert [(cell.value, str(cell.device)) for cell in cells(obj)] == before
        return moved, [(value, where) for value, _ in model]

    @rule(thing=things)
    def look(self, thing: Any) -> None:
        obj, model = thing
        assert [(cell.value, str(cell.device)) for cell in cells(obj)] == model
        where = {device for _, device in model}
        if len(where) == 1:
            assert str(placement.device_of(obj)) == where.pop()
        else:
            with pytest.raises(DeviceMismatchError):
                placement.device_of(obj)


TestPlacement = PlacementMachine.TestCase
TestPlacement.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
