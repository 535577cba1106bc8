"""The conformance kit over TensorFlow and Keras."""

from __future__ import annotations

import os

import keras
import pytest
import tensorflow as tf
from sampling import sampled

from anyaccel_devtools.testing import Subject, model_suite, suite
from anyaccel_devtools.testing.replica_tests import run_scenarios
from anyaccel_tensorflow.conformance import TensorFlowSubject
from anyaccel_tensorflow.ops import TensorFlowOps


class Built(tf.Module):
    """A tf.Module as in TensorFlow's guide: variables in the constructor, and a call that is a tf.function."""

    def __init__(self):
        super().__init__()
        draw = tf.random.Generator.from_seed(3)
        self.hidden = [tf.Variable(draw.normal([4, 5])), tf.Variable(tf.zeros(5))]
        self.last = {"kernel": tf.Variable(draw.normal([5, 3])), "bias": tf.Variable(tf.zeros(3))}

    @tf.function
    def __call__(self, x):
        x = tf.tanh(x @ self.hidden[0] + self.hidden[1])
        return x @ self.last["kernel"] + self.last["bias"]


class Standard(TensorFlowSubject):
    """SequentialMLP."""

    @pytest.fixture
    def replica_folder(self, backend, harness, tmp_path_factory):
        if not os.environ.get("ANYACCEL_TEST_FULL"):
            pytest.skip("ANYACCEL_TEST_FULL is not set; test_replicas.py trains in two processes anyway")
        return run_scenarios(backend, harness, tmp_path_factory)


class Keras(TensorFlowSubject):
    """Unbuilt Keras models."""

    replica_folder = Standard.replica_folder

    @pytest.fixture
    def model(self):
        return lambda: keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])

    @pytest.fixture
    def float64_model(self):
        layers = keras.layers
        return lambda: keras.Sequential([layers.Dense(5, "tanh", dtype="float64"), layers.Dense(3, dtype="float64")])

    @pytest.fixture
    def random_model(self):
        layers = keras.layers
        return lambda: keras.Sequential([layers.Dense(8), layers.Dropout(0.5), layers.Dense(3)])

    @pytest.fixture
    def dropout_free_model(self):
        layers = keras.layers
        return lambda: keras.Sequential([layers.Dense(8), layers.Dropout(0.0), layers.Dense(3)])


class Module(Keras):
    """A user's tf.Module, eager throughout: compiled in the middle of a test, it would give other last bits."""

    @pytest.fixture(autouse=True)
    def compiled(self, monkeypatch):
        monkeypatch.setattr(TensorFlowOps, "eager_seconds", 1e9)

    @pytest.fixture
    def model(self):
        return Built

    float64_model = Subject.float64_model


FURTHER = suite(Module, "Module") | model_suite(Keras, "Keras")
# In the check each test of the kit runs over one framework of three; the session `kits` runs all.
globals().update(sampled(suite(Standard, "Standard"), 3, 2) | sampled(FURTHER, 24))
