"""Random floats are the same in eager steps, in a plain tf.function and in XLA."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.segment import Segment, TensorSpec
from anyaccel_tensorflow import step_loop
from anyaccel_tensorflow.backend import TensorFlowBackend
from anyaccel_tensorflow.step_loop import equal_draws, has_unequal_draws

CPU = Device("cpu")
SEED = (5, 7)
LARGE = (1100, 1001)  # more than a million elements
layers = keras.layers


def by_xla(draw: Callable[[], Any]) -> Any:
    """What XLA gives for a function that is traced as a loop of steps is."""

    @tf.function(jit_compile=True, autograph=False)
    def run() -> Any:
        with equal_draws():
            return draw()

    return run().numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (5,), (33, 77), LARGE])
def test_uniform_floats_are_those_of_tensorflow_bit_by_bit(shape: tuple[int, ...], dtype: str) -> None:
    draw = partial(tf.random.stateless_uniform, shape, SEED, dtype=dtype)
    expected = draw().numpy()
    assert expected.shape == shape
    np.testing.assert_array_equal(tf.function(draw)().numpy(), expected)
    np.testing.assert_array_equal(by_xla(draw), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float32", 5e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("shape", [(), (5,), (33, 77), LARGE])
def test_normal_floats_are_those_of_tensorflow(shape: tuple[int, ...], dtype: str, tolerance: float) -> None:
    draw = partial(tf.random.stateless_normal, shape, SEED, mean=2.0, stddev=3.0, dtype=dtype)
    expected = draw().numpy()
    np.testing.assert_allclose(by_xla(draw), expected, rtol=tolerance, atol=3 * tolerance)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: layers.Dropout(0.4, seed=1), LARGE),
        (lambda: layers.SpatialDropout1D(0.4, seed=1), (20, 9, 40)),
        (lambda: layers.AlphaDropout(0.4, seed=1), (20, 40)),
        (lambda: layers.GaussianNoise(0.4, seed=1), LARGE),
        (lambda: layers.GaussianDropout(0.4, seed=1), (20, 40)),
        (lambda: layers.RandomFlip(seed=1), (20, 8, 8, 3)),
    ],
)
def test_layers_of_keras_draw_the_same_under_xla(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    x = tf.ones(shape) + tf.reshape(tf.range(np.prod(shape), dtype=tf.float32), shape) / 1e6
    expected = make()(x, training=True).numpy()
    plain = make()
    plain.build(shape)
    np.testing.assert_allclose(tf.function(partial(plain, training=True))(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    compiled = make()
    compiled.build(shape)
    np.testing.assert_allclose(by_xla(lambda: compiled(x, training=True)), expected, rtol=1e-5, atol=1e-5)
    assert not np.array_equal(expected, x)


def test_other_threads_and_later_draws_are_those_of_the_kernels() -> None:
    draw = partial(tf.random.stateless_uniform, (5,), SEED)
    kinds: list[set[str]] = []

    def trace() -> None:
        graph = tf.function(draw).get_concrete_function().graph
        kinds.append({operation.type for operation in graph.get_operations()})

    with equal_draws(), equal_draws():
        trace()
        other = threading.Thread(target=trace)
        other.start()
        other.join()
    trace()
    assert ["StatelessRandomUniformV2" in types for types in kinds] == [False, True, True]


@pytest.mark.parametrize(
    ("draw", "unequal"),
    [
        (lambda: tf.random.stateless_uniform((5,), SEED, 0, 9, dtype=tf.int32), False),
        (lambda: tf.random.stateless_uniform((5,), SEED), False),
        (lambda: tf.random.stateless_normal((5,), SEED), False),
        (lambda: tf.random.stateless_truncated_normal((5,), SEED), True),
        (lambda: tf.random.stateless_categorical([[0.0, 1.0]], 5, SEED), True),
        (lambda: tf.random.normal((5,)), True),
        (lambda: tf.while_loop(lambda x: x < 3, lambda x: x + tf.random.uniform(()), [0.0]), True),
    ],
)
def test_what_xla_would_draw_otherwise_is_seen(draw: Callable[[], Any], unequal: bool) -> None:
    with equal_draws():
        graph = tf.function(draw).get_concrete_function().graph
    assert has_unequal_draws(graph) is unequal


# -- steps -----------------------------------------------------------------------------------------------------------


def losses(backend: TensorFlowBackend, segment_of: Callable[..., Segment], noise: Any, compiled: bool) -> np.ndarray:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(16), noise(), layers.Dense(1)])
    backend.infer(model, [TensorSpec((3,), "float32")], 3)
    program = backend.build(segment_of(backend.place(model, CPU), optimizer=aa.Optimizer("sgd", lr=0.01)))
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    columns = [backend.from_host(array, CPU) for array in (x, x[:, :1] * 2)]
    order = backend.from_host(np.arange(24), CPU)
    program.seed(9)
    if compiled:
        program.compile(columns, [order, order], 4, 1)
    result = np.asarray(program.train_steps(columns, [order, order], 0, 5, 4, 1))[:5]
    program.close()
    return result


class TruncatedNoise(layers.Layer):
    """Adds what XLA draws otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return x + keras.random.truncated_normal((16,), seed=self.generator) if training else x


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize(
    "noise",
    [partial(layers.Dropout, 0.5), partial(layers.GaussianNoise, 0.5), TruncatedNoise],
    ids=["dropout", "gaussian", "truncated"],
)
def test_one_seed_trains_alike_whichever_loop_was_faster(
    backend: TensorFlowBackend,
    segment_of: Callable[..., Segment],
    monkeypatch: pytest.MonkeyPatch,
    noise: Any,
    faster: bool,
) -> None:
    monkeypatch.setattr(step_loop, "is_faster", lambda *_: faster)
    eager = losses(backend, segment_of, noise, compiled=False)
    np.testing.assert_allclose(losses(backend, segment_of, noise, compiled=True), eager, rtol=1e-5)
