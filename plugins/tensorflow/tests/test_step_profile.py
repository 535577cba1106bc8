"""Names of scopes: only what TensorFlow and XLA take, of labels of any characters, which train as others do."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import anyaccel as aa
from anyaccel_tensorflow import SequentialMLP
from anyaccel_tensorflow.ops import scope_name


@given(st.text(max_size=30))
def test_a_scope_has_only_characters_that_are_allowed(name):
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9_]*", scope_name(name))


@pytest.mark.parametrize("label", ["a > b", "größe-1 (x)", "___"])
def test_a_node_of_any_label_is_traced(label):
    with tf.Graph().as_default(), tf.name_scope(f"{scope_name(label)}/"):
        assert tf.constant(1.0).op.name.startswith(scope_name(label))
    x = np.ones((8, 3), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode(label, SequentialMLP(1), data.reference())], "sgd")
    losses = [aa.AppliedLoss("mse", on=label)]
    results = aa.Experiment(graph, progress="none").run_phase(aa.TrainPhase("t", data="all", losses=losses))
    assert np.isfinite(results.epochs[-1].loss)
