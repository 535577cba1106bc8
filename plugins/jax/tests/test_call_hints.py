"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from wrong_calls import check_refused, offered

import anyaccel_jax
from anyaccel.errors import ArgumentError

OF_CORE = {"JaxBackend", "backends"}
"""Core calls them, or makes them, not users."""
OFFERED = offered(anyaccel_jax, of_core=OF_CORE)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(OFFERED[name])


def test_the_hints_work() -> None:
    with pytest.raises(ArgumentError, match=r"Available: apply, parameters, state. Hint: it is called 'parameters'"):
        anyaccel_jax.Function(apply=jnp.dot, params=jnp.ones(2))
    assert anyaccel_jax.Function(apply=jnp.dot, parameters=jnp.ones(2)).tree.tolist() == [1.0, 1.0]
