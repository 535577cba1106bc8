"""Whether two fitted objects are in the same state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from anyaccel_sklearn.transforms.fitted_transform import same_state


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    "value", [1, "a", None, float("nan"), np.array([1.0, np.nan]), np.array(["a", None], object), [1, {"a": (2,)}]]
)
def test_equal_states_are_the_same(value: Any) -> None:
    assert same_state(Plain(value), Plain(copy.deepcopy(value)))
    assert not same_state(Plain(value), Plain("another")) and not same_state(Plain(value), value)


def test_arrays_are_compared_by_dtype_shape_and_value() -> None:
    first = np.array([1.0, 2.0])
    assert same_state(Plain(first), Plain(first.copy()))
    for other in (first.astype("float32"), first[:1], first + 1, first[:, None]):
        assert not same_state(Plain(first), Plain(other))


def test_objects_that_refer_to_themselves_count_as_different() -> None:
    first, other = Plain(None), Plain(None)
    first.value, other.value = first, other
    assert not same_state(first, other) and same_state(first, first)
