"""The conformance kit over JAX: all of it for pure functions, the model tests for every kind of model."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import pytest
from sampling import sampled

import anyaccel_jax as ours
from anyaccel_devtools.testing import Subject, model_suite, suite
from anyaccel_devtools.testing.replica_tests import run_scenarios
from anyaccel_jax import Function, compute
from anyaccel_jax.conformance import JaxSubject


class Jax(JaxSubject):
    """Pure functions on the best device of this machine, among two of the CPU."""

    @pytest.fixture
    def replica_folder(self, backend, harness, tmp_path_factory):
        if not os.environ.get("ANYACCEL_TEST_FULL"):
            pytest.skip("ANYACCEL_TEST_FULL is not set; test_replicas.py trains in two processes anyway")
        return run_scenarios(backend, harness, tmp_path_factory)

    @pytest.fixture
    def model(self):
        return lambda: Function(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]["w"] + p["b"]["c"], parameters())

    @pytest.fixture
    def random_model(self, linen):
        return lambda: ours.Linen(linen_net(linen, linen.Dense(8), linen.Dropout(0.5), linen.Dense(3)))

    @pytest.fixture
    def buffered_model(self, linen):
        return lambda: ours.Linen(linen_net(linen, linen.Dense(5), linen.BatchNorm(), linen.Dense(3)))

    @pytest.fixture
    def dropout_free_model(self, linen):
        return lambda: ours.Linen(linen_net(linen, linen.Dense(8), linen.Dropout(0.0), linen.Dense(3)))

    @pytest.fixture
    def tied_model(self, nnx):
        return lambda: nnx_tied(nnx)


class Standard(Jax):
    """SequentialMLP, with JAX's 64-bit types and donated state."""

    model = Subject.model
    random_model = Subject.random_model
    dropout_free_model = Subject.dropout_free_model

    @pytest.fixture(autouse=True)
    def wide(self, x64, monkeypatch):
        monkeypatch.setattr(compute, "DONATED_BYTES", 0)
        with x64(True):
            yield


class OfNnx(Jax):
    """Flax NNX."""

    @pytest.fixture
    def model(self, nnx):
        return lambda: nnx_net(nnx, lambda rngs: jnp.tanh)

    @pytest.fixture
    def random_model(self, nnx):
        return lambda: nnx_net(nnx, lambda rngs: nnx.Dropout(0.5, rngs=rngs))

    @pytest.fixture
    def buffered_model(self, nnx):
        return lambda: nnx_net(nnx, lambda rngs: nnx.BatchNorm(5, rngs=rngs))

    @pytest.fixture
    def dropout_free_model(self, nnx):
        return lambda: nnx_net(nnx, lambda rngs: nnx.Dropout(0.0, rngs=rngs))


class OfEquinox(Jax):
    """Equinox, whose modules take single samples, with JAX's 64-bit types."""

    @pytest.fixture(autouse=True)
    def wide(self, x64):
        with x64(True):
            yield

    @pytest.fixture
    def model(self, eqx):
        return lambda: eqx_net(eqx, lambda: eqx.nn.Lambda(jnp.tanh))

    @pytest.fixture
    def float64_model(self, eqx):
        return lambda: eqx_net(eqx, lambda: eqx.nn.Lambda(jnp.tanh), jnp.float64)

    @pytest.fixture
    def random_model(self, eqx):
        return lambda: eqx_net(eqx, lambda: eqx.nn.Dropout(0.5))

    @pytest.fixture
    def buffered_model(self, eqx):
        return lambda: eqx_net(eqx, lambda: eqx.nn.BatchNorm(5, "batch", mode="batch", dtype=jnp.float32))

    @pytest.fixture
    def dropout_free_model(self, eqx):
        return lambda: eqx_net(eqx, lambda: eqx.nn.Dropout(0.0))


class OfKeras(Jax):
    """Keras on JAX."""

    @pytest.fixture
    def model(self, keras):
        return lambda: keras_net(keras, keras.layers.Activation("tanh"))

    @pytest.fixture
    def random_model(self, keras):
        return lambda: keras_net(keras, keras.layers.Dropout(0.5))

    @pytest.fixture
    def buffered_model(self, keras):
        return lambda: keras_net(keras, keras.layers.BatchNormalization())

    @pytest.fixture
    def dropout_free_model(self, keras):
        return lambda: keras_net(keras, keras.layers.Dropout(0.0))

    @pytest.fixture
    def tied_model(self, keras):
        return lambda: keras_tied(keras)

    @pytest.fixture
    def parameter_free_model(self, keras):
        return lambda: keras.layers.Activation("tanh")


def parameters():
    draw = jax.random.split(jax.random.key(0), 2)
    return {"a": jax.random.normal(draw[0], (4, 5)), "b": {"w": jax.random.normal(draw[1], (5, 3)), "c": jnp.zeros(3)}}


def linen_net(nn, *layers):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            for layer in layers:
                known = {nn.Dropout: {"deterministic": not train}, nn.BatchNorm: {"use_running_average": not train}}
                x = layer.copy()(x, **known.get(type(layer), {}))
            return x

    return Net()


def nnx_net(nnx, middle):
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(4, 5, rngs=rngs), middle(rngs), nnx.Linear(5, 3, rngs=rngs))


def nnx_tied(nnx):
    rngs = nnx.Rngs(0)
    tied = nnx.Linear(4, 4, rngs=rngs)
    return nnx.Sequential(tied, jnp.tanh, tied, nnx.Linear(4, 3, rngs=rngs))


def eqx_net(eqx, middle, dtype=jnp.float32):
    first_key, second_key = jax.random.split(jax.random.key(0))
    first, last = eqx.nn.Linear(4, 5, dtype=dtype, key=first_key), eqx.nn.Linear(5, 3, dtype=dtype, key=second_key)
    return ours.Equinox(eqx.nn.Sequential([first, middle(), last]))


def keras_net(keras, middle):
    return keras.Sequential([keras.layers.Dense(5), middle, keras.layers.Dense(3)])


def keras_tied(keras):
    inputs, tied = keras.Input((4,)), keras.layers.Dense(4, "tanh")
    return keras.Model(inputs, keras.layers.Dense(3)(tied(tied(inputs))))


FURTHER = {
    **suite(Standard, "Standard"),
    **model_suite(OfNnx, "Nnx"),
    **model_suite(OfEquinox, "Equinox"),
    **model_suite(OfKeras, "Keras"),
}
# In the check each test of the kit runs over one framework of three; the session `kits` runs all.
globals().update(sampled(suite(Jax), 3, 0) | sampled(FURTHER, 24))
