"""`device_map`, `max_memory` and `offload` of nodes: the values that are taken, and frameworks that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import AnyaccelError, CapabilityError, GraphError
from anyaccel_offload.planner import OffloadPlan, PlacedBlock, memory_size

X = np.zeros((4, 3), "float32")


def node(**settings: Any) -> aa.ModelNode:
    data = aa.FeatureSet.from_dict("data", {"x": X}, ["x"])
    return aa.ModelNode("net", aa.SequentialMLP(1), data.reference(), **settings)


def test_memory_or_a_tier_alone_ask_for_a_planned_map() -> None:
    assert node().device_map is None
    assert node(offload="cpu").device_map == "auto"
    assert node(max_memory={0: "1GiB", "cpu": 5}).max_memory == {0: 2**30, "cpu": 5}
    assert node(device_map={"layers": aa.Device("gpu", 1), "head": 0}).device_map == {"layers": "gpu:1", "head": 0}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"offload": "tape"}, "offload='tape' is not 'no', 'cpu' or 'disk'"),
        ({"device_map": "balanced"}, "device_map='balanced' is not a mapping or 'auto'"),
        ({"device_map": {}}, "device_map={} is not a dict of names"),
        ({"device_map": {"a": 1.5}}, "is not a device, 'cpu' or 'disk'"),
        ({"device_map": {"a": -1}}, "is not a device, 'cpu' or 'disk'"),
        ({"device_map": {"a": "cpu"}, "offload": "cpu"}, "device_map is a mapping, but offload is for planned"),
        ({"device_map": {"a": "cpu"}, "max_memory": {0: 1}}, "but max_memory is for planned maps"),
        ({"max_memory": {}}, "max_memory={} is not bytes for each device"),
        ({"max_memory": {"gpu:0": "20 apples"}}, "is not a size"),
        ({"max_memory": {"gpu:0": "-1GB"}}, "is not a size"),
        ({"max_memory": {"gpu:0": -1}}, "is not an int of at least 0"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_do(settings: Any, says: str) -> None:
    with pytest.raises(GraphError) as raised:
        node(**settings)
    assert says in raised.value.problem and raised.value.problem.startswith("node 'net': ")
    assert raised.value.hint


def test_a_framework_that_cannot_divide_models_refuses_a_device_map() -> None:
    """NumPy's plugin has no capability `offload`."""
    graph = aa.ModelGraph([node(device_map="auto")])
    with pytest.raises(
        CapabilityError, match=r"has a device_map, but is computed by numpy.*capability 'offload'.*leave"
    ):
        aa.Experiment("test", graph, progress="none").run_phase(aa.EvalPhase("eval", data=graph_data(graph)))


def graph_data(graph: aa.ModelGraph) -> Any:
    return graph["net"].upstreams[0].feature_set  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "nbytes"), [("20GiB", 20 * 2**30), ("1.5 kb", 1500), (7, 7), ("3B", 3)])
def test_sizes_in_words(text: Any, nbytes: int) -> None:
    assert memory_size(GraphError, "", "size", text) == nbytes


def test_the_time_of_a_step_is_the_larger_of_copy_and_compute() -> None:
    blocks = tuple(PlacedBlock(name=n, device=aa.Device("gpu"), tier="cpu", nbytes=4, step_bytes=8) for n in "ab")
    plan = OffloadPlan(blocks=blocks, copy_seconds=2.0, compute_seconds=3.0)
    assert (plan.seconds, plan.step_bytes) == (3.0, 16)
    assert OffloadPlan.from_dict(plan.to_dict()) == plan
    with pytest.raises(TypeError, match="seconds"):
        OffloadPlan.from_dict({**plan.to_dict(), "copy_seconds": -1})


def test_errors_have_a_base() -> None:
    with pytest.raises(AnyaccelError):
        node(offload=None)
