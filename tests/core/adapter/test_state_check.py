"""States are checked before anything of them is loaded."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.state_check import check_state, not_built_error, state_names
from anyaccel.errors import StateError
from anyaccel.segment import TensorSpec

EXPECTED = {"parameters/w": TensorSpec((2,), "float32"), "buffers/n": TensorSpec((), "int64")}
STATE = {"parameters/w": np.ones(2, ">f4"), "buffers/n": np.int64(3)}


def test_a_state_with_the_models_names_shapes_and_dtypes_passes():
    assert check_state(STATE, EXPECTED) is None
    assert list(state_names({"w": 1}, {"n": 2})) == list(EXPECTED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffers/n": None}, r"the state lacks buffers/n; the model has parameters/w, buffers/n"),
        ({"x": np.zeros(1)}, r"has x, which is not in the model"),
        ({"parameters/w": np.ones(3, "f4")}, r"w in the state is float32\[3\]; .* is float32\[2\]"),
        ({"parameters/w": np.ones(2)}, r"w in the state is float64\[2\]"),
    ],
)
def test_any_other_state_is_refused(changes, message):
    state = {name: value for name, value in {**STATE, **changes}.items() if value is not None}
    with pytest.raises(StateError, match=message):
        check_state(state, EXPECTED)


def test_a_model_without_parameters_is_named():
    assert "int has no parameters yet" in str(not_built_error(3)) and "Hint: call it" in str(
        not_built_error(3, "call it")
    )
