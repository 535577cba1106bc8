"""What is said of a loop of one's own before a framework has a part in it."""

from __future__ import annotations

import importlib

import pytest

import anyaccel as aa
from anyaccel.errors import ArgumentError, CapabilityError, ConfigError
from anyaccel_distributed.own_loop import Loop


def test_a_name_has_one_hint() -> None:
    names = [name for names in Loop.attribute_hints for name in names.split()]
    assert aa.Loop is Loop and len(names) == len(set(names))


def test_the_old_names_of_modules_are_the_same_modules() -> None:
    old = importlib.import_module("anyaccel.own_loop")
    assert importlib.import_module("anyaccel.own_loop.loop").Loop is Loop is old.Loop
    assert old.prepare is aa.prepare


def test_a_loop_needs_a_framework_that_has_loops() -> None:
    with pytest.raises(CapabilityError, match=r"^numpy does not support your own loop here"):
        aa.Loop(framework="numpy")
    with pytest.raises(ArgumentError, match=r"^Loop has no argument 'fp16'. Hint: write precision='fp16-mixed'"):
        aa.Loop(fp16=True)


def test_settings_that_cannot_be_are_refused_before_anything_begins() -> None:
    class OfNone(Loop):
        framework = "numpy"

    with pytest.raises(ConfigError, match=r"^Loop: unknown sharding='offload'"):
        OfNone(sharding="offload")
