"""Likeness: whether two fitted objects are in the same state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from anyaccel.data.transforms.state_equality import same_state


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    "value", [1, "a", None, float("nan"), np.array([1.0, np.nan]), np.array(["a", None], object), [1, {"a": (2,)}]]
)
def test_equal_states_are_alike(value: Any) -> None:
    assert same_state(Plain(value), Plain(copy.deepcopy(value)))
    assert not same_state(Plain(value), Plain("another")) and not same_state(Plain(value), value)


def test_arrays_are_compared_by_dtype_shape_and_value() -> None:
    one = np.array([1.0, 2.0])
    assert same_state(Plain(one), Plain(one.copy()))
    for other in (one.astype("float32"), one[:1], one + 1, one[:, None]):
        assert not same_state(Plain(one), Plain(other))


def test_what_refers_to_itself_counts_as_different() -> None:
    one, other = Plain(None), Plain(None)
    one.value, other.value = one, other
    assert not same_state(one, other) and same_state(one, one)
