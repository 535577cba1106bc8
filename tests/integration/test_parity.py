"""Every framework against NumPy: the same graph, seed and batches give the same losses and states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from . import graphs

TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
HEALTH_CHECKS = [HealthCheck.function_scoped_fixture]
# Compiling each example is slow.
SOME = settings(max_examples=examples(15), deadline=None, suppress_health_check=HEALTH_CHECKS)
FEW = settings(SOME, max_examples=examples(6))


def trains(spec: object) -> bool:
    """Whether a loss depends on a node that is not frozen."""
    try:
        graphs.train(spec, "numpy", epochs=1)
    except Exception as error:
        assert "nothing to train" in str(error), error
        return False
    return True


def assert_same(expected: tuple, actual: tuple, dtype: str) -> None:
    """Assert equal figures in every epoch and an equal state at the end."""
    tolerance = TOLERANCE[dtype]
    for name in expected[0].figures:
        np.testing.assert_allclose(actual[0].figure(name), expected[0].figure(name), rtol=tolerance, atol=tolerance)
    assert set(actual[1]) == set(expected[1])
    for name, array in expected[1].items():
        assert actual[1][name].dtype == array.dtype, name
        np.testing.assert_allclose(actual[1][name], array, rtol=tolerance, atol=tolerance, err_msg=name)


@SOME
@given(spec=graphs.graph_specs())
def test_a_random_graph_trains_as_in_numpy(framework: str, spec) -> None:
    assume(trains(spec))
    assert_same(graphs.train(spec, "numpy"), graphs.train(spec, framework), spec.dtype)


@SOME
@given(spec=graphs.graph_specs(), owned=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_graph_of_two_frameworks_trains_as_in_numpy(framework: str, spec, owned) -> None:
    """Values and cotangents cross between segments; clipping and schedules span them."""
    assume(trains(spec))
    owners = {i: framework if is_own else "numpy" for i, is_own in enumerate(owned)}
    assert_same(graphs.train(spec, "numpy"), graphs.train(spec, owners), spec.dtype)


@pytest.mark.shared
@FEW
@given(spec=graphs.graph_specs())
def test_reading_losses_in_every_step_changes_nothing(framework: str, spec) -> None:
    import anyaccel as aa

    class ReadLosses(aa.Callback):
        def step_end(self, run) -> None:
            run.step_losses()

    assume(trains(spec))
    unread = graphs.train(spec, framework)
    assert_same(unread, graphs.train(spec, framework, callbacks=[ReadLosses()]), spec.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fifty_adam_steps_agree(framework: str, dtype: str) -> None:
    layers = (graphs.Layer((-1,), 4, 2, "tanh", False), graphs.Layer((0, -1), 3, 2, "relu", False))
    spec = graphs.GraphSpec(layers, "mse", (("name", "adam"), ("lr", 1e-2)), 1.0, True, dtype, True)
    expected, actual = (graphs.train(spec, name, epochs=10)[0].loss for name in ("numpy", framework))
    np.testing.assert_allclose(actual, expected, rtol=1e-5 if dtype == "float32" else 1e-8)
