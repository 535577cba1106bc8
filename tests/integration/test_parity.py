"""Every framework against the reference: the same recipe, seed and batches give the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st


def _load() -> ModuleType:
    """The module beside this one: pytest's importlib mode puts no folder on the path."""
    spec = importlib.util.spec_from_file_location("parity_graphs", Path(__file__).with_name("graphs.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


graphs = _load()
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
SHARED = [HealthCheck.function_scoped_fixture]
SOME = settings(max_examples=15, deadline=None, suppress_health_check=SHARED)  # some frameworks compile each of them
FEW = settings(SOME, max_examples=6)


def trains(recipe: object) -> bool:
    """Whether a loss depends on a node that is not frozen."""
    try:
        graphs.train(recipe, "numpy", epochs=1)
    except Exception as error:
        assert "nothing to train" in str(error), error
        return False
    return True


def assert_same(one: tuple, other: tuple, dtype: str) -> None:
    """The same figures in every epoch and the same state at the end."""
    tolerance = TOLERANCE[dtype]
    for name in one[0].figures:
        np.testing.assert_allclose(other[0].figure(name), one[0].figure(name), rtol=tolerance, atol=tolerance)
    assert set(other[1]) == set(one[1])
    for name, array in one[1].items():
        assert other[1][name].dtype == array.dtype, name
        np.testing.assert_allclose(other[1][name], array, rtol=tolerance, atol=tolerance, err_msg=name)


@SOME
@given(recipe=graphs.recipes())
def test_a_random_graph_trains_to_the_same_numbers(framework: str, recipe) -> None:
    assume(trains(recipe))
    assert_same(graphs.train(recipe, "numpy"), graphs.train(recipe, framework), recipe.dtype)


@SOME
@given(recipe=graphs.recipes(), owned=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_graph_of_two_frameworks_trains_to_the_same_numbers(framework: str, recipe, owned) -> None:
    """Values and cotangents cross the border; clipping and schedules span it."""
    assume(trains(recipe))
    owners = {i: framework if mine else "numpy" for i, mine in enumerate(owned)}
    assert_same(graphs.train(recipe, "numpy"), graphs.train(recipe, owners), recipe.dtype)


@FEW
@given(recipe=graphs.recipes())
def test_watching_every_step_changes_nothing(framework: str, recipe) -> None:
    import anyaccel as aa

    class Watch(aa.Callback):
        def step_end(self, run) -> None:
            run.step_losses()

    assume(trains(recipe))
    one = graphs.train(recipe, framework)
    assert_same(one, graphs.train(recipe, framework, callbacks=[Watch()]), recipe.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fifty_adam_steps_agree(framework: str, dtype: str) -> None:
    layers = (graphs.Layer((-1,), 4, 2, "tanh", False), graphs.Layer((0, -1), 3, 2, "relu", False))
    recipe = graphs.Recipe(layers, "mse", (("name", "adam"), ("lr", 1e-2)), 1.0, True, dtype, True)
    one, other = (graphs.train(recipe, name, epochs=10)[0].loss for name in ("numpy", framework))
    np.testing.assert_allclose(other, one, rtol=1e-5 if dtype == "float32" else 1e-8)
