"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import pytest

import anyaccel_jax
from anyaccel.errors import ArgumentError
from anyaccel_jax.big_models import OffloadedChain

OF_CORE = {"JaxBackend", "backends"}
"""Core calls them, or makes them, not users."""
OFFERED = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (anyaccel_jax,)
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


def test_the_hints_work() -> None:
    with pytest.raises(ArgumentError, match=r"Available: apply, parameters, state. Hint: it is called 'parameters'"):
        anyaccel_jax.Function(apply=jnp.dot, params=jnp.ones(2))
    assert anyaccel_jax.Function(apply=jnp.dot, parameters=jnp.ones(2)).tree.tolist() == [1.0, 1.0]
    with pytest.raises(ArgumentError, match=r"OffloadedChain has no argument 'func'. Available: functions, parameters"):
        OffloadedChain(func=[])
