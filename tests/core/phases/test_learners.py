"""Nodes that learn without gradients: what lets them is one distribution, or an error."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from anyaccel.distributions import EXTENSIONS
from anyaccel.errors import MissingDistributionError, PluginError
from anyaccel.graph import ModelNode


@pytest.fixture
def two_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are installed that let nodes learn."""
    two = [EntryPoint("learners", f"{name}:LEARNING", EXTENSIONS) for name in ("one", "two")]
    for module in ("anyaccel.distributions", "anyaccel.extensions"):
        monkeypatch.setattr(f"{module}.entry_points", lambda group: two)


@pytest.mark.usefixtures("two_distributions")
def test_two_distributions_that_let_nodes_learn_are_an_error_that_names_both(
    learner: type[Any], line: Callable[..., Any], experiment: Callable[..., Any], train: Callable[..., Any]
) -> None:
    graph = line()
    assert experiment(graph).run_phase(train()).epochs, "what has no such nodes asks for neither"
    graph.add_node(ModelNode("est", learner(), "net"))
    with pytest.raises(PluginError, match=r"^one:LEARNING and two:LEARNING both provide 'learners' in .*uninstall one"):
        experiment(graph).run_phase(train())


def test_one_that_is_registered_beside_another_is_an_error(
    learner: type[Any],
    line: Callable[..., Any],
    experiment: Callable[..., Any],
    train: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = line()
    graph.add_node(ModelNode("est", learner(), "net"))
    assert experiment(graph).run_phase(train()).epochs and graph["est"].model.diary
    monkeypatch.setattr("anyaccel.extensions._registered", {"learners": [object(), object()]})
    with pytest.raises(PluginError, match="both extend 'learners'"):
        experiment(graph).run_phase(train())


def test_without_one_such_a_node_is_an_error_and_does_not_stand_still_in_silence(
    learner: type[Any],
    line: Callable[..., Any],
    experiment: Callable[..., Any],
    train: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = line()
    graph.add_node(ModelNode("est", learner(), "net"))
    monkeypatch.setattr("anyaccel.extensions._registered", {})
    with pytest.raises(MissingDistributionError, match=r"learns from each step .* needs anyaccel-sklearn"):
        experiment(graph).run_phase(train())
