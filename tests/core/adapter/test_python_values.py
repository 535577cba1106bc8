"""What a reading of Python values sees, and what it takes for a change."""

from __future__ import annotations

import functools
import gc
import math
import sys
import types
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest

from anyaccel.adapter.python_values import attributes_key, changed_paths, values_of

ALPHA = 1.0
LARGE = np.zeros(5000)


@dataclass
class Config:
    scale: float = 1.0
    nested: dict = field(default_factory=lambda: {"rates": [0.1, 0.2]})


CONFIG = Config()
SETTINGS = types.SimpleNamespace(rate=0.5, inner=types.SimpleNamespace(depth=2))
module = types.ModuleType("user_settings")
module.BETA = 0.5
module.unread = 1


class Annealed:
    weight = 1.0

    def __call__(self, outputs, targets):
        return self.weight * (outputs - targets).sum()


def helper(value):
    return value * CONFIG.scale


def reading_global(value):
    return value * ALPHA


def reading_config(value):
    return helper(value)


def reading_nested(value):
    return (lambda: value * CONFIG.nested["rates"][1])()


def reading_module(value):
    return value * module.BETA


def reading_array(value):
    return value + LARGE.sum()


def reading_settings(value):
    return value * SETTINGS.inner.depth


def with_default(value, scale=CONFIG):
    return value * scale.scale


def closed_over(rates):
    def loss(value):
        return value * rates["rate"]

    return loss


def set_global(name, value):
    return lambda: globals().__setitem__(name, value)


CHANGES = {
    "a global": (reading_global, set_global("ALPHA", 2.0), "ALPHA"),
    "an attribute of a configuration, read by a function that is called": (
        reading_config,
        lambda: setattr(CONFIG, "scale", 3.0),
        "CONFIG.scale",
    ),
    "an item of a container": (
        reading_nested,
        lambda: CONFIG.nested["rates"].__setitem__(1, 9.0),
        "CONFIG.nested['rates'][1]",
    ),
    "an attribute of a module": (reading_module, lambda: setattr(module, "BETA", 0.7), "module.BETA"),
    "an element in the middle of an array": (reading_array, lambda: LARGE.__setitem__(2500, 1.0), "LARGE"),
    "a namespace of Python's own": (
        reading_settings,
        lambda: setattr(SETTINGS.inner, "depth", 3),
        "SETTINGS.inner.depth",
    ),
    "an attribute of a default": (with_default, lambda: setattr(CONFIG, "scale", 4.0), "loss.__defaults__[0].scale"),
    "an attribute of the class of an object": (
        Annealed(),
        lambda: setattr(Annealed, "weight", 2.0),
        "Annealed.weight",
    ),
}


@pytest.fixture(autouse=True)
def restored():
    yield
    globals().update(ALPHA=1.0)
    LARGE[:] = 0
    CONFIG.scale, CONFIG.nested["rates"][1], module.BETA, SETTINGS.inner.depth = 1.0, 0.2, 0.5, 2
    Annealed.weight = 1.0


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_value_is_named(name):
    function, change, path = CHANGES[name]
    before = values_of("loss", function)
    assert values_of("loss", function) == before and hash(before) is not None
    change()
    assert changed_paths(before, values_of("loss", function)) == [path]


def test_closures_partials_methods_and_objects_are_followed():
    rates, annealed = {"rate": 1.0}, Annealed()
    for value in (closed_over(rates), functools.partial(closed_over(rates), 2.0)):
        before = values_of("loss", value)
        rates["rate"] += 1.0
        assert changed_paths(before, values_of("loss", value)) == ["rates['rate']"]
    before = values_of("loss", annealed.__call__)
    annealed.weight = 5.0
    assert "loss.weight" in changed_paths(before, values_of("loss", annealed.__call__))


def test_what_a_function_does_not_read_is_no_change():
    before = values_of("loss", reading_module)
    module.unread += 1
    CONFIG.scale = 9.0
    assert values_of("loss", reading_module) == before


def test_equal_values_compare_equal_and_others_do_not():
    assert values_of("x", math.nan) == values_of("x", float("nan"))
    for one, other in ((1, 1.0), (True, 1), (0.0, -0.0), ([1], (1,)), ({"a": 1}, {"b": 1}), (None, 0)):
        assert values_of("x", one) != values_of("x", other), (one, other)
    assert values_of("x", Config()) == values_of("x", Config()), "objects compare by what they hold"
    assert values_of("x", {3, 1}) == values_of("x", {1, 3})


def test_arrays_that_differ_in_the_middle_only_are_not_equal():
    one, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1.0
    assert repr(one) == repr(other)
    assert values_of("x", {"weight": one}) != values_of("x", {"weight": other})


def test_what_cannot_be_compared_equals_nothing_and_is_no_known_change():
    held = np.array([object()], dtype=object)
    before, after = values_of("x", held), values_of("x", held)
    assert before != after and changed_paths(before, after) == []


def test_cycles_and_depth_end():
    ring: list = []
    ring.append(ring)
    assert values_of("x", ring) == values_of("x", ring)
    deep: list = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    assert values_of("x", deep) != values_of("x", deep), "too deep to be compared"


def test_readings_hold_no_objects():
    obj = Annealed()
    obj.held = Annealed()
    kept, gone = values_of("x", obj), [weakref.ref(obj), weakref.ref(obj.held)]
    del obj
    gc.collect()
    assert kept and [reference() for reference in gone] == [None, None]


def test_parts_of_a_model_compare_by_attributes_and_the_code_of_their_classes():
    part = Annealed()
    part.rate, part.sizes, part.child = 0.5, [1, (2, "x")], Config()

    def told():
        return attributes_key([("", part)], lambda _: {"skipped"}, lambda value: isinstance(value, Config))

    before = told()
    part.child.scale, part.skipped = 7.0, 1
    assert told() == before
    Annealed.weight = 3.0
    assert changed_paths(before, told()) == ["Annealed.weight"]
    Annealed.weight, part.rate = 1.0, 0.25
    assert changed_paths(before, told()) == ["rate"]
