"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

import inspect

import pytest

import anyaccel_tensorflow
from anyaccel.errors import ArgumentError

OF_CORE = {"TensorFlowBackend", "backends"}
"""Core calls them, or makes them, not users."""
OFFERED = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (anyaccel_tensorflow,)
    for name in module.__all__
    if name not in OF_CORE
}


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    called = OFFERED[name]
    with pytest.raises(ArgumentError) as caught:
        called(colour_of_the_bars="red")
    assert f"{called.__name__} has no argument 'colour_of_the_bars'. " in str(caught.value)
    assert caught.value.available == ", ".join(inspect.signature(called).parameters)


def test_the_hint_works() -> None:
    with pytest.raises(ArgumentError, match=r"Available: output_shape, channels, .* Hint: did you mean 'channels'\?"):
        anyaccel_tensorflow.SequentialCNN(2, chanels=(3,))
    assert list(anyaccel_tensorflow.SequentialCNN(2, channels=(3,)).get_config()["channels"]) == [3]
