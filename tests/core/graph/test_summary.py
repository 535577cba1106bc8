"""The summary of a graph: a table for a terminal."""

from __future__ import annotations

from anyaccel import ConcatNode, ModelGraph, ModelNode
from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend import Module


def test_a_summary_has_a_line_for_each_node(table, mlp):
    fs = table()
    nodes = [
        ModelNode("a", mlp(3), fs.reference(), "cuda:1"),
        ConcatNode("c", ["a", fs.reference()]),
        ModelNode("d", mlp(2), "c"),
    ]
    graph = ModelGraph(nodes, label="g").freeze("a")
    assert graph.summary().splitlines() == [
        "graph 'g'",
        "node  model             framework  device                  takes                   gives       parameters",
        "a     SequentialMLP     numpy      cpu:0 (asks for gpu:1)  float32[4]              float32[3]  15 (frozen)",
        "c     concat (axis -1)  numpy      cpu:0                   float32[3], float32[4]  float32[7]  0",
        "d     SequentialMLP     numpy      cpu:0                   float32[7]              float32[2]  16",
        "31 parameters",
    ]
    assert graph.is_built


def test_a_summary_of_one_says_so_and_keeps_to_its_lines(table, mlp):
    class Mean(Module):
        def apply(self, values, inputs, *, train, key):
            return VjpResult((inputs[0].mean(axis=1),), lambda cotangents: ({}, (None,)))

    Mean.__name__ = "Mean\nof all"
    lines = ModelGraph([ModelNode("m", Mean(), table().reference())]).summary().splitlines()
    assert len(lines) == 4 and lines[2].startswith("m     Mean of all  numpy") and lines[3] == "0 parameters"
