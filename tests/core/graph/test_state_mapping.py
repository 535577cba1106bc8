"""States with other names and another order of axes, loaded by a map of names."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import StateError

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


def graph(*labels: str) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0] - X[:, 1]}, ["x"], ["y"])
    nodes = [aa.ModelNode(label, aa.SequentialMLP(hidden_dim=4), data.reference()) for label in labels]
    made = aa.ModelGraph(nodes, "adam", seed=len(labels))
    losses = [aa.AppliedLoss("mse", on=label) for label in labels]
    made.run(aa.TrainPhase("t", data="all", losses=losses, epochs=1), progress="none")
    return made


def foreign(state):
    """The state as another framework would have it: `w` for weight, and matrices turned."""
    return {
        name.replace("weight", "w"): array.T if "/parameters/" in name or "/optimizer/" in name else array
        for name, array in state.items()
    }


def to_weight(name: str) -> str:
    return name.replace(".w", ".weight")


def turned(name: str, array: np.ndarray) -> np.ndarray:
    return array.T


@pytest.mark.parametrize("labels", [("net",), ("a", "b")])
def test_names_axes_and_optimizer_state_become_those_of_the_graph(labels):
    given = graph(*labels).state()
    assert any("/optimizer/m/" in name for name in given)
    loaded = graph(*labels).load_state(foreign(given), names=to_weight, change=turned)
    assert loaded.state().keys() == given.keys()
    for name, array in loaded.state().items():
        np.testing.assert_array_equal(array, given[name])


def test_with_several_nodes_names_begin_with_that_of_the_node():
    given, seen = graph("a", "b").state(), []
    graph("a", "b").load_state(given, names=lambda name: seen.append(name) or name, change=lambda name, array: array)
    assert {name.partition(".")[0] for name in seen} == {"a", "b"}


def test_a_saved_graph_is_loaded_so_too(tmp_path):
    saved = graph("net")
    saved.save(tmp_path)
    same = {"names": {}, "change": lambda name, array: array}
    assert aa.ModelGraph.load(tmp_path, **same).state().keys() == saved.state().keys()


def test_what_is_left_out_has_no_optimizer_state_either():
    given = graph("net").state()
    extra = {f"net/{place}extra": np.ones(2, np.float32) for place in ("parameters/", "optimizer/m/", "optimizer/v/")}
    own = graph("net").load_state({**given, **extra}, names={"extra": None})
    assert own.state().keys() == given.keys()


def test_narrower_floats_are_widened_with_their_optimizer_state():
    given = graph("net").state()
    half = {name: array.astype("float16") if array.dtype == "float32" else array for name, array in given.items()}
    own = graph("net").load_state(half, names={})
    for name, array in own.state().items():
        assert array.dtype == given[name].dtype, name
        np.testing.assert_array_equal(array, half[name])


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (
            foreign,
            {"names": {}},
            r"missing: .*0.weight.*unexpected: .*0.w.*Hint: map the names",
        ),
        (foreign, {"names": to_weight}, r"with their axes in another order.*Hint: reorder the axes"),
        (
            lambda state: state,
            {"change": lambda name, array: array * 2},
            r"changes the values of 'layers.*only their",
        ),
        (lambda state: state, {"change": lambda name, array: 1 / 0}, r"change=.* failed for 'layers.*ZeroDivision"),
        (
            lambda state: state,
            {"names": lambda name: "layers.0.weight"},
            r"names returns 'layers.0.weight' for .* and for",
        ),
        (lambda state: state, {"names": 3}, r"names=3 is neither a dict nor a function. Hint: write names="),
        (
            lambda state: {**state, "net/optimizer/m/none": X},
            {"names": {}},
            r"the state of node 'net' does not fit: it has optimizer/m/none",
        ),
    ],
)
def test_what_does_not_fit_is_told_and_changes_nothing(change, settings, message):
    own = graph("net")
    before = own.state()
    with pytest.raises(StateError, match=message):
        own.load_state(change(graph("net").state()), **settings)
    assert all(np.array_equal(array, before[name]) for name, array in own.state().items())
