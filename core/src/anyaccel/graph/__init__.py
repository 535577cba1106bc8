"""Graphs: nodes, what they are wired to, and the plan of a phase over them."""

from anyaccel.graph.device_assignment import PolicyNode, precedence
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.nodes import ConcatNode, ModelNode
from anyaccel.graph.plan import Assignment, Column, Crossing, Part, Plan
from anyaccel.graph.resolve import Request, Resolution, resolve

__all__ = [
    "Assignment",
    "Column",
    "ConcatNode",
    "Crossing",
    "ModelGraph",
    "ModelNode",
    "Part",
    "Plan",
    "PolicyNode",
    "Request",
    "Resolution",
    "precedence",
    "resolve",
]
