"""Arguments that there are not, and wrong values of those that there are: each is an error with a hint, or valid."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wrong_calls import check_refused, wrongly_taken

from anyaccel import AppliedLoss, Experiment, FeatureSet, ModelGraph, ModelNode, SequentialMLP, TrainPhase
from anyaccel_resources import DeviceRequest, Inventory

USED = (DeviceRequest, Inventory)


def methods() -> dict[str, Callable[..., Any]]:
    """What users call of a class and of its objects."""
    of_classes = {
        f"{cls.__name__}.{name}": getattr(cls if isinstance(value, classmethod) else object.__new__(cls), name)
        for cls in USED
        for name, value in inspect.getmembers_static(cls)
        if name[0] != "_" and (isinstance(value, classmethod) or inspect.isfunction(value))
    }
    return {**{cls.__name__: cls for cls in USED}, **of_classes}


METHODS = methods()


@pytest.mark.parametrize("name", METHODS)
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(METHODS[name])


def planned() -> tuple[Callable[..., Any], dict[str, Any]]:
    x = [[1.0, 2.0], [3.0, 4.0]]
    data = FeatureSet.from_dict("d", {"x": x, "y": [0.0, 1.0]}, ["x"], ["y"])
    graph = ModelGraph([ModelNode("net", SequentialMLP(()), data.reference())], "sgd")
    return Experiment("e", graph).plan, {
        "phase": TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="net")]),
        "inventory": "1x sim-1GB, cpu 8GB",
    }


CALLS: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "DeviceRequest.parse": lambda: (DeviceRequest.parse, {"value": "H100:2, any"}),
    "DeviceRequest.resolve": lambda: (DeviceRequest.parse("any").resolve, {"on": "8x H100-80GB", "strict": False}),
    "DeviceRequest.export": lambda: (DeviceRequest.parse("H100:2").export, {"to": "modal"}),
    "Inventory.parse": lambda: (Inventory.parse, {"value": "8x H100-80GB"}),
    "Experiment.plan": planned,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(name: str) -> None:
    assert not wrongly_taken(name, CALLS[name])


def test_a_wrong_path_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"devices": [{"product": "T4", "count": 2}]}')
    given = {"path": str(tmp_path / "node.json")}
    assert not wrongly_taken("Inventory.from_file", lambda: (Inventory.from_file, given))
