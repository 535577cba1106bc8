"""Samples of a node's columns, for shape inference of models that do not accept zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anyaccel.adapter.example_spec import ExampleSpec
from anyaccel.data import Reference, joined_array
from anyaccel.data.rows import Rows
from anyaccel.graph.nodes import Node, column_name
from anyaccel.segment import TensorSpec

N_SAMPLES = 3  # the largest batch that models are called with


def example_columns(node: Node) -> dict[str, np.ndarray]:
    """The first samples of each column that a node takes, by the name of the value; of sources there are none."""
    columns = {}
    for upstream in node.upstreams:
        if isinstance(upstream, Reference) and isinstance(upstream.feature_set, Rows) and len(upstream.feature_set):
            rows = upstream.feature_set.take(np.arange(min(N_SAMPLES, len(upstream.feature_set))))
            columns[column_name(upstream)] = joined_array(rows, upstream.features)
    return columns


def with_examples(
    names: Sequence[str], specs: Sequence[TensorSpec], columns: Mapping[str, np.ndarray]
) -> tuple[TensorSpec, ...]:
    """Specs of values with the samples that there are of them, in the shape that the node takes."""
    return tuple(
        ExampleSpec(spec.shape, spec.dtype, columns[name].reshape(-1, *spec.shape)) if name in columns else spec
        for name, spec in zip(names, specs, strict=True)
    )
