"""Hints of own loops of TensorFlow."""

from __future__ import annotations

import collections
import os
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

tf = pytest.importorskip("tensorflow")
pytest.importorskip("anyaccel_tensorflow")
keras: Any = pytest.importorskip("keras")

if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another framework in this process", allow_module_level=True)

from anyaccel_tensorflow.own_loop import DatasetLoader, TensorFlowLoop  # noqa: E402

X = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")


def loop_of(**settings: Any) -> Any:
    return aa.Loop("cpu", framework="tensorflow", **settings)


def model_of(*more: Any) -> Any:
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(1), *more])


def taped(model: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(X) ** 2)
    return tape, loss


class _Others(TensorFlowLoop):
    """As one of two processes, which both give what this one gives."""

    other: Any = None

    def __init__(self, **settings: Any) -> None:
        super().__init__("cpu")
        self.num_processes, self.sync_batchnorm = 2, settings.get("sync_batchnorm")
        self._processes.gather_plain = lambda value, call="": [
            value,
            value if self.other is None else self.other(value),
        ]
        self._processes.part = lambda: None
        self._processes.gather = lambda value, call="": [value, value]
        self._check_settings()

    def be_two(self, other: Any) -> None:
        """Divide batches, too."""
        self._processes.size, self.other = 2, other


def test_a_step_is_a_function_of_the_loop(hint: Any) -> None:
    loop = loop_of()
    model, optimizer = loop.prepare(model_of(), keras.optimizers.SGD(0.1))

    def step() -> Any:
        variables = model.trainable_variables
        gradients = loop.gradient(*taped(model), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    with hint("use @loop.function instead of @tf.function"):
        tf.function(step, autograph=False)()
    loop.function(step, autograph=False)()
    with hint("write gradients = loop.gradient(tape, loss, model.trainable_variables), once for each update"):
        tape, loss = taped(model)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables, strict=True))
    tape, loss = taped(model)
    gradients = loop.gradient(tape, loss, model.trainable_variables)
    with hint("write optimizer.apply_gradients(zip(gradients, variables))"):
        optimizer.apply(gradients)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    with hint("prepare all trained models, and use the result of prepare(): model = loop.prepare(model)"):
        other = model_of()
        loop.gradient(*taped(other), other.trainable_variables)
    model = other
    model = loop.prepare(model)
    assert loop.gradient(*taped(model), model.trainable_variables)


def test_what_another_loop_has_prepared(hint: Any) -> None:
    model, optimizer, loop = model_of(), keras.optimizers.SGD(0.1), loop_of(accumulate=2)
    loop.prepare(model, optimizer)
    with hint(
        "prepare each model once, and use the result of prepare(); call loop.close() before you use it in another Loop"
    ):
        loop_of().prepare(model)
    with hint("prepare each optimizer once; call loop.close() before you use it in another Loop"):
        loop_of().prepare(optimizer)
    loop.close()
    tape, loss = taped(model)
    gradients, before = tape.gradient(loss, model.trainable_variables), model.trainable_variables[0].numpy()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert (model.trainable_variables[0].numpy() != before).any(), "it steps as it did before"
    loop_of().prepare(model, optimizer)


def test_a_loss_says_over_what_it_is_a_mean(hint: Any) -> None:
    loop = loop_of(accumulate=2)
    model = loop.prepare(model_of())
    variables, x = model.trainable_variables, tf.constant(X)
    with hint("prepare the data set, or pass the number: loop.gradient(tape, loss * len(x), variables, count=len(x))"):
        loop.gradient(*taped(model), variables)
    loop = loop_of(accumulate=2)
    model = loop.prepare(model_of())
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x)) * len(x)
    loop.gradient(tape, loss, variables, count=len(x))
    loop = loop_of()
    model = loop.prepare(model_of())
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        loss = model(x) ** 2
    with hint(
        "write tf.reduce_mean(loss), or pass the number of terms: loop.gradient(tape, loss, variables, "
        "count=tf.size(loss))"
    ):
        loop.gradient(tape, loss, variables)
    loop = loop_of()
    model = loop.prepare(model_of())
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        loss = model(x) ** 2
        mean = tf.reduce_mean(loss)
    with loop.accumulate():
        of_mean = loop.gradient(tape, mean, variables)
        of_sum = loop.gradient(tape, loss, variables, count=tf.size(loss))
    np.testing.assert_allclose(of_mean[0], of_sum[0], rtol=1e-5)


def test_calls_are_alike_for_each_batch(hint: Any) -> None:
    loop = loop_of()
    model = loop.prepare(model_of())

    def step(x: Any, variables: Any, count: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return loop.gradient(tape, loss, variables, count=count)

    counted = loop.function(lambda x: step(x, model.trainable_variables, x.shape[0]))
    with hint("pass count= for each batch, as a tensor: count=tf.shape(x)[0]"):
        for n in (4, 3, 2):
            counted(X[:n])
    counted = loop.function(lambda x: step(x, model.trainable_variables, count=tf.shape(x)[0]))
    for n in (4, 3, 2):
        counted(X[:n])
    several = loop.function(lambda x, first: step(x, model.trainable_variables[first : first + 1], 1))
    assert [len(several(X, first)) for first in (0, 1)] == [1, 1]
    loop = loop_of(accumulate=2)
    model, batches = loop.prepare(model_of(), tf.data.Dataset.from_tensor_slices(X).batch(2))
    with hint("call it for each batch, and run optimizers only at updates: if loop.is_update: ..."):
        for x in batches:
            step(x, model.trainable_variables[: 1 if loop.is_update else 2], None)
    loop = loop_of(accumulate=2)
    model, batches = loop.prepare(model_of(), tf.data.Dataset.from_tensor_slices(X).batch(2))
    updates = []
    for x in batches:
        step(x, model.trainable_variables, None)
        if loop.is_update:
            updates.append(x)
    assert len(updates) == 2


def test_loss_scale(hint: Any) -> None:
    with hint(
        "write keras.config.set_dtype_policy('mixed_float16') before you create the model, optimizer = "
        "keras.optimizers.LossScaleOptimizer(optimizer), and "
        "loop.gradient(tape, optimizer.scale_loss(loss), variables)"
    ):
        loop_of(precision="fp16-mixed")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = model_of()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    loop = loop_of()
    with hint("build it before prepare(): optimizer.build(model.trainable_variables)"):
        loop.prepare(optimizer)
    optimizer.build(model.trainable_variables)
    model, optimizer = loop.prepare(model, optimizer)
    variables = model.trainable_variables

    def loss_of() -> Any:
        return tf.cast(tf.reduce_mean(model(X)), tf.float32)

    with hint("write loop.gradient(tape, optimizer.scale_loss(loss), model.trainable_variables)"):
        with tf.GradientTape() as tape:
            loss = loss_of()
        gradients = loop.gradient(tape, loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of())
    gradients = loop.gradient(tape, loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    assert int(optimizer.iterations) == 1
    assert loop.step == 1


def test_settings(hint: Any) -> None:
    with hint("write precision='bf16-mixed', or keras.config.set_dtype_policy('float64') before you create the model"):
        loop_of(precision="float64")
    assert loop_of(precision="bf16-mixed").prepare(model_of())(X).dtype == tf.bfloat16
    keras.config.set_dtype_policy("float64")
    try:
        assert loop_of().prepare(model_of())(X).dtype == tf.float64
    finally:
        keras.config.set_dtype_policy("float32")
    with hint("leave precision out, and cast in the model: tf.cast(x, tf.bfloat16)"):
        loop_of(precision="bf16-mixed").prepare(tf.Variable([1.0]))
    variable = loop_of().prepare(tf.Variable([1.0]))
    assert (tf.cast(variable, tf.bfloat16) * 2).dtype == tf.bfloat16
    with hint("leave sharding out, or train a model of torch or JAX"):
        loop_of(sharding="full")
    with hint("leave options out"):
        loop_of(options={"bucket_cap_mb": 1})
    loop_of()
    with hint("leave gradient_accumulation_steps out; the loop divides by the rows of the whole window"):
        loop_of(accumulate=2).prepare(keras.optimizers.SGD(gradient_accumulation_steps=2))
    loop_of(accumulate=2).prepare(keras.optimizers.SGD())


def test_what_is_prepared(hint: Any) -> None:
    loop = loop_of()
    model = keras.Sequential([keras.layers.Dense(1)])
    with hint("create them before prepare(): model.build((None, 5)) for rows of 5 columns, or call it once"):
        loop.prepare(model)
    model.build((None, 5))
    loop.prepare(model)
    metric = keras.metrics.MeanSquaredError()
    with hint("update it with the rows of all processes: metric.update_state(*loop.gather((y, predictions)))"):
        loop.prepare(metric)
    y = predictions = model(X)
    metric.update_state(*loop.gather((y, predictions)))
    assert float(metric.result()) == 0
    with hint("write model, optimizer, dataset = loop.prepare(model, optimizer, dataset)"):
        loop.prepare(3)
    optimizer, dataset = keras.optimizers.SGD(), tf.data.Dataset.from_tensor_slices(X).batch(4)
    model, optimizer, dataset = loop.prepare(model_of(), optimizer, dataset)
    assert isinstance(dataset, DatasetLoader)
    with hint("create a data set for the epoch: dataset.shuffle(n, seed=epoch, reshuffle_each_iteration=False)"):
        dataset.set_epoch(3)
    n, epoch = 8, 3
    dataset = tf.data.Dataset.range(n).shuffle(n, seed=epoch, reshuffle_each_iteration=False).batch(n)
    dataset = loop.prepare(dataset)
    assert next(iter(dataset)).numpy().tolist() == next(iter(dataset)).numpy().tolist()


def test_several_processes(hint: Any) -> None:
    norm = keras.layers.BatchNormalization()
    with hint("write Loop(sync_batchnorm=False) for statistics of each process"):
        _Others().prepare(model_of(norm))
    Loop = _Others
    Loop(sync_batchnorm=False).prepare(model_of(norm))
    with hint(
        "write sync_batchnorm=False for statistics of the rows of each process (moving averages stay equal), or use "
        "keras.layers.GroupNormalization or LayerNormalization"
    ):
        _Others(sync_batchnorm=True)
    _Others(sync_batchnorm=False)
    _Others().prepare(model_of(keras.layers.GroupNormalization(1), keras.layers.LayerNormalization()))
    loop = _Others()
    model = model_of()
    with hint("compile only the model: forward = tf.function(model, jit_compile=True)"):
        loop.function(model, jit_compile=True)
    forward = tf.function(model, jit_compile=True)
    assert forward(X).shape == (8, 1)
    loop.other = lambda value: dict.fromkeys(value, "another")
    with hint(
        "create the model after the Loop, which seeds all processes equally, or seed them yourself: "
        "keras.utils.set_random_seed(0)"
    ):
        loop.prepare(model)
    loop.other = None
    keras.utils.set_random_seed(0)
    loop.prepare(model_of())


def test_order_of_rows(hint: Any) -> None:
    def first_of(make: Any, other: Any = None) -> Any:
        loop = _Others()
        loop.be_two(other)
        return next(iter(loop.prepare(make())))

    def shuffled(n: int = 8, **settings: Any) -> Any:
        return tf.data.Dataset.range(n).shuffle(n, **settings).batch(n)

    with hint("create it after the Loop, without shard(); or set a seed for each shuffle: dataset.shuffle(n, seed=0)"):
        other_rows = lambda value: "another" if isinstance(value, str) and "Spec" not in value else value  # noqa: E731
        first_of(lambda: shuffled().shard(2, 0), other_rows)
    assert first_of(lambda: shuffled(seed=0)).shape == (4,), "a half of the rows, without shard()"
    n, dataset = 8, tf.data.Dataset.range(8)
    loader = loop_of().prepare(dataset.shuffle(n, seed=0).batch(4))
    next(batches := iter(loader))
    state = loader.state_dict()
    batches.close()
    other = loop_of().prepare(dataset.shuffle(n, seed=1).batch(4))
    other.load_state_dict(state)
    with hint("create it after Loop(seed=0), or set a seed for each shuffle: dataset.shuffle(n, seed=0)"):
        next(iter(other))
    again = loop_of().prepare(dataset.shuffle(n, seed=0).batch(4))
    again.load_state_dict(state)
    assert len(next(iter(again))) == 4
    Loop = loop_of
    states: list[Any] = []
    for _ in range(2):
        loader = Loop(seed=0).prepare(dataset.shuffle(n).batch(4))
        for state in states:
            loader.load_state_dict(state)
        next(batches := iter(loader))
        states.append(loader.state_dict())
        batches.close()


def test_words_of_torch(hint: Any) -> None:
    loop, model = loop_of(), model_of()
    with hint("write gradients = loop.gradient(tape, loss, variables)"):
        loop.backward(0.0)
    model = loop.prepare(model)
    tape, loss = taped(model)
    gradients = loop.gradient(tape, loss, model.trainable_variables)
    assert len(gradients) == 2


def test_a_data_set_of_single_rows(hint: Any) -> None:
    source = tf.data.Dataset.from_tensor_slices((X, X[:, :1]))
    with hint(
        "return one entry per row in every column; of single rows, batch them (source.batch(32), DataLoader(...))"
    ):
        aa.fit(model_of(), source, loss="mse", epochs=1, progress="none")
    # in torch: DataLoader(source, batch_size=32)
    assert aa.fit(model_of(), source.batch(32), loss="mse", epochs=1, progress="none").results.loss.size == 1


def test_a_list_of_batches(hint: Any) -> None:
    loop, batches = loop_of(), [(X, X[:, :1]), (X, X[:, :1])]
    with hint("prepare a list of batches as another iterable: loop.prepare(model, collections.deque(batches))"):
        loop.prepare(model_of(), batches)
    model, loader = loop.prepare(model_of(), collections.deque(batches))
    assert [model(x).shape[0] for x, _ in loader] == [8, 8]
