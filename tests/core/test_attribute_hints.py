"""AttributeErrors of public classes: hints for names of other libraries, and nothing hidden."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.attribute_hints import AttributeHints
from anyaccel.errors import ResultError
from anyaccel.results.formatting import NamedValues


class Box(AttributeHints):
    attribute_hints = {"open unlock": "use lift()"}

    def lift(self) -> int:
        return 1

    @property
    def broken(self) -> Any:
        return [].nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unlock", r"^'Box' object has no attribute 'unlock'\. Hint: use lift\(\)\.$"),
        ("lifts", r"^'Box' object has no attribute 'lifts'\. Hint: did you mean 'lift'\?$"),
        ("zzz", r"^'Box' object has no attribute 'zzz'$"),
        ("_open", r"^'Box' object has no attribute '_open'$"),
        ("broken", r"^'list' object has no attribute 'nothing'$"),
    ],
)
def test_an_attribute_that_is_not_there_has_a_hint_if_one_is_known(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(Box(), name)
    assert not hasattr(Box(), "open") and Box().lift() == 1


@pytest.mark.parametrize("of", [aa.ModelGraph, aa.Experiment, aa.TrainPhase, aa.FeatureSet, aa.ModelNode])
def test_a_name_has_one_hint(of: Any) -> None:
    names = [name for names in of.attribute_hints for name in names.split()]
    assert len(names) == len(set(names))


def test_values_of_a_run_by_a_wrong_name_are_an_error_with_the_right_ones() -> None:
    metrics = NamedValues("metric", {"accuracy": 0.5})
    with pytest.raises(ResultError, match=r"the run has no metric 'acuracy'. Available: accuracy. Hint: did you mean"):
        metrics["acuracy"]
    with pytest.raises(KeyError, match=r"Hint: add it to the phase: EvalPhase\(\.\.\., metrics=\['f1'\]\)"):
        metrics["f1"]
    assert metrics.get("f1") is None and metrics == {"accuracy": 0.5} and repr(metrics) == "{'accuracy': 0.5}"
    for again in (copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics))):
        assert again == metrics
        with pytest.raises(ResultError):
            again["f1"]


def test_objects_with_hints_are_copied_and_tried_as_before() -> None:
    data = aa.FeatureSet.from_dict("d", {"x": np.zeros((4, 2)), "y": np.zeros(4)}, "x", "y")
    node = aa.ModelNode("n", aa.SequentialMLP(1), data.reference())
    graph = aa.ModelGraph([node], "sgd")
    for each in (data, node, graph, aa.EvalPhase("e", data="all"), aa.Experiment("e", graph)):
        assert not hasattr(each, "__array__") and not hasattr(each, "fit")
        assert type(copy.copy(each)) is type(each)
