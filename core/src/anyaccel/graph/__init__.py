"""Graphs: models of any framework connected to data and to each other, and the plan of a phase over them.

Offers ModelGraph with its nodes, `resolve`, which turns a graph and the request of a phase into a Plan, weight files,
and copying of weights. Stands on `data`, `requests`, `saved_folder`, `adapter`, `precision` and the kernel.
"""

from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.device_assignment import PolicyNode, Request, Resolution, precedence
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.nodes import ConcatNode, ModelNode
from anyaccel.graph.plan import Plan, PlanDiff
from anyaccel.graph.plan_entries import (
    Assignment,
    Column,
    Crossing,
    Decision,
    DeviceMemory,
    NodeActivations,
    Part,
    Rejection,
)
from anyaccel.graph.resolve import resolve
from anyaccel.graph.weight_loading import LoadedWeights

__all__ = [
    "AppliedLoss",
    "Assignment",
    "Column",
    "ConcatNode",
    "Crossing",
    "Decision",
    "DeviceMemory",
    "LoadedWeights",
    "ModelGraph",
    "ModelNode",
    "NodeActivations",
    "Part",
    "Plan",
    "PlanDiff",
    "PolicyNode",
    "Rejection",
    "Request",
    "Resolution",
    "precedence",
    "resolve",
]
