"""Wrong arguments of the tools: each is an AnyaccelError with a hint, or valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from wrong_calls import check_refused, wrongly_taken

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((12, 3)).astype("float32")


def graph() -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "adam")


def train() -> aa.TrainPhase:
    return aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], batch_size=4)


CALLS: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "find_learning_rate": lambda: (
        aa.find_learning_rate,
        {"graph": graph(), "phase": train(), "min_lr": 1e-4, "max_lr": 0.1, "n_steps": 10, "smoothing": 0.5}
        | {"stop_factor": 4.0, "progress": "none"},
    ),
    "ModelGraph.visualize": lambda: (graph().visualize, {"format": "mermaid", "plan": None}),
    "Profile": lambda: (aa.Profile, {"steps": (10, 20), "folder": "profile"}),
    "Plan.to_html": lambda: (train().plan(graph()).to_html, {"picture": None}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(name: str) -> None:
    wrong = wrongly_taken(name, CALLS[name])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_that_there_is_not_is_refused(name: str) -> None:
    check_refused(CALLS[name]()[0])
