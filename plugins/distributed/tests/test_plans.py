"""Plans of one of several replicas."""

from __future__ import annotations

from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel_distributed.phase_groups import PROCESS_GROUPS


def one_node() -> aa.ModelGraph:
    x = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "adam")


def train(**settings: Any) -> aa.TrainPhase:
    settings = {"accelerator": "sim", "epochs": 2, "batch_size": 16, **settings}
    return aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], **settings)


def test_a_plan_of_one_of_several_replicas_does_not_cover_what_they_share() -> None:
    with aa.simulate(2, capacity=10**9):
        plan = aa.Plan.from_json(aa.Experiment("e", one_node()).plan(train()).to_json())
        sharded = train(sharding="full")
        whole = aa.Plan.from_json(aa.Experiment("e", one_node()).plan(sharded).to_json())
    shared = PROCESS_GROUPS.plan_of_one(train(), plan, (aa.Device("sim", 0), aa.Device("sim", 1)))
    assert shared.notes[-1].startswith("this is the plan of one of 2 replicas, on sim:0, sim:1")
    assert set(shared.memory[0].gaps) == {"batches", "activations"} and shared.fits is None
    divided = PROCESS_GROUPS.plan_of_one(sharded, whole, (aa.Device("sim", 0), aa.Device("sim", 1)))
    assert divided.memory[0].parameters is None and len(divided.not_covered) == 5
