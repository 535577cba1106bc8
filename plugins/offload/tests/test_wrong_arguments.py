"""Wrong values of arguments: each is an error with a hint, or valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wrong_calls import wrongly_taken

from anyaccel import FeatureSet, ModelNode, SequentialMLP
from anyaccel_offload import Block, BlockPlan, DeviceSpec, Edge, OffloadTier, plan_blocks


def node(device_map: Any = None, max_memory: Any = None, offload: Any = "no") -> ModelNode:
    data = FeatureSet.from_dict("d", {"x": [[1.0, 2.0]]}, ["x"])
    settings = {"device_map": device_map, "max_memory": max_memory, "offload": offload}
    return ModelNode("net", SequentialMLP(1), data.reference(), **settings)


CALLS: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "ModelNode": lambda: (node, {"device_map": "auto", "max_memory": {0: 1}, "offload": "cpu"}),
    "Block": lambda: (
        Block,
        {"name": "b", "parameter_bytes": 1, "buffer_bytes": 1, "activation_bytes": 1, "cache_bytes_per_token": 1}
        | {"seconds": 1.0, "output_bytes": 1, "tied": {}, "group": "", "backward": False},
    ),
    "BlockPlan.from_dict": lambda: (
        BlockPlan.from_dict,
        {"given": plan_blocks([Block(name="b")], [DeviceSpec(name="d")]).to_dict()},
    ),
    "DeviceSpec": lambda: (
        DeviceSpec,
        {"name": "gpu:0", "memory": 10, "kind": "gpu", "rate": 1.0, "link": 1.0, "offload_link": 1.0}
        | {"headroom": 0.1, "rounding": 1},
    ),
    "Edge": lambda: (Edge, {"source": "a", "target": "b", "nbytes": 1, "tensor": ""}),
    "OffloadTier": lambda: (OffloadTier, {"name": "cpu", "memory": 1, "bandwidth": 1.0}),
    "plan_blocks": lambda: (
        plan_blocks,
        {"blocks": [Block(name="b")], "devices": [DeviceSpec(name="d")], "edges": [], "tokens": 1}
        | {"objective": "latency", "training": False, "optimizer_ratio": 2.0, "offload": "no", "tiers": []},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(name: str) -> None:
    assert not wrongly_taken(name, CALLS[name])
