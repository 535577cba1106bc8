"""Own loops of TensorFlow in as many processes as a launcher made; the first one prints what each case found, as JSON.

Arguments: names of cases, with commas between; after a colon, a value that a case is given. The tests have a loop by
hand for most of them: `by_hand_NAME`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import AnyaccelError

N_ROWS = 107


def rows(n: int = N_ROWS) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(n, 5))
    return x, x.sum(1, keepdims=True) + np.sin(3 * x[:, :1])


def data(n: int = N_ROWS, size: int = 16) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(rows(n)).shuffle(n, seed=1).batch(size)


def model_of(dtype: str = "float64", *more: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(8, activation="tanh", dtype=dtype)
    return keras.Sequential([keras.Input((5,), dtype=dtype), hidden, *more, keras.layers.Dense(1, dtype=dtype)])


def optimizer_of() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9)


def loop_of(**settings: Any) -> Any:
    return aa.Loop("cpu", framework="tensorflow", **settings)


def weights_of(*models: Any) -> list[Any]:
    return [np.asarray(variable).tolist() for model in models for variable in model.variables]


def squares(model: Any, x: Any, y: Any) -> Any:
    return (model(x, training=True) - tf.cast(y, model.layers[-1].dtype)) ** 2


# -- the update of a mean over rows ------------------------------------------------------------------------------------


def by_hand_updates(n: int = N_ROWS, size: int = 16, steps: int = 1, dtype: str = "float64") -> dict[str, Any]:
    model, optimizer, batches = model_of(dtype), optimizer_of(), data(n, size)
    losses, norms, rates = [], [], []
    for _ in range(3):
        left, n_batches, n_summed = len(batches), 0, 0
        sums = [tf.zeros_like(v) for v in model.trainable_variables]
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(squares(model, x, y))
            sums = [a + g for a, g in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True)]
            left, n_batches, n_summed = left - 1, n_batches + 1, n_summed + len(x)
            losses.append(float(loss) / len(x))
            if n_batches == steps or not left:
                means, norm = tf.clip_by_global_norm([total / n_summed for total in sums], 1.0)
                optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
                norms.append(float(norm))
                rates.append(float(optimizer.learning_rate))
                sums, n_batches, n_summed = [tf.zeros_like(total) for total in sums], 0, 0
    return {"losses": losses, "norms": norms, "rates": rates, "weights": weights_of(model)}


def updates(n: int = N_ROWS, size: int = 16, steps: int = 1, dtype: str = "float64") -> dict[str, Any]:
    loop = loop_of(accumulate=steps)
    model, optimizer, batches, test = loop.prepare(model_of(dtype), optimizer_of(), data(n, size), data(10, 4))

    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss, norm

    losses, norms, rates = [], [], []
    for _ in loop.epochs(3):
        for x, y in batches:
            loss, norm = step(x, y)
            for a, _ in test:  # evaluated within a window, and left early
                model(a)
                break
            losses.append(float(loop.reduce(loss)))
            if loop.is_update:
                norms.append(float(norm))
                rates.append(float(optimizer.learning_rate))
    found = {"losses": losses, "norms": norms, "rates": rates, "weights": weights_of(model)}
    traces = step.experimental_get_tracing_count()
    return {**found, "steps": loop.step, "traces": traces, "alike": len({*map(str, loop_all(loop, found))})}


def loop_all(loop: Any, value: Any) -> list[Any]:
    """What all processes give."""
    return [loop.broadcast(value, source) for source in range(loop.num_processes)]


def single_precision() -> dict[str, Any]:
    return updates(dtype="float32")


def by_hand_single_precision() -> dict[str, Any]:
    return by_hand_updates(dtype="float32")


def one_row() -> dict[str, Any]:
    return updates(33)


def by_hand_one_row() -> dict[str, Any]:
    return by_hand_updates(33)


def accumulated() -> dict[str, Any]:
    """14 batches of 8 rows or fewer, by three: the fifth update has two."""
    return updates(size=8, steps=3)


def by_hand_accumulated() -> dict[str, Any]:
    return by_hand_updates(size=8, steps=3)


# -- means over tokens -------------------------------------------------------------------------------------------------


def tokens() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """12 batches of 4 texts; in some of them the first half, or the second, has no token."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(48, 6, 5)), rng.normal(size=(48, 6, 1))
    mask = (rng.random((48, 6)) < 0.4).astype(np.float64)
    mask[0:2] = mask[6:8] = mask[12:16] = 0
    return x, y, mask


def by_hand_token_means(steps: int = 3) -> dict[str, Any]:
    model, optimizer = model_of(), optimizer_of()
    x, y, mask = tokens()
    losses = []
    for first in range(0, 48, 4 * steps):
        window = slice(first, first + 4 * steps)
        with tf.GradientTape() as tape:
            predicted = tf.reshape(model(x[window].reshape(-1, 5), training=True), y[window].shape)
            loss = tf.reduce_sum(mask[window][..., None] * (predicted - y[window]) ** 2) / mask[window].sum()
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return {"losses": losses, "weights": weights_of(model)}


def token_means(steps: int = 3) -> dict[str, Any]:
    loop = loop_of(accumulate=steps)
    model, optimizer, batches = loop.prepare(
        model_of(), optimizer_of(), tf.data.Dataset.from_tensor_slices(tokens()).batch(4)
    )

    @loop.function
    def step(x: Any, y: Any, mask: Any) -> Any:
        n_tokens = tf.reduce_sum(mask)
        with tf.GradientTape() as tape:
            predicted = tf.reshape(model(tf.reshape(x, (-1, 5)), training=True), tf.shape(y))
            total = tf.reduce_sum(mask[..., None] * (predicted - y) ** 2)
        gradients = loop.gradient(tape, total, model.trainable_variables, count=n_tokens)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return total, n_tokens

    losses, sums, counts = [], 0.0, 0.0
    for x, y, mask in batches:
        total, n_tokens = step(x, y, mask)
        sums, counts = sums + float(total), counts + float(n_tokens)
        if loop.is_update:
            losses.append(float(loop.reduce(sums, count=counts)))
            sums = counts = 0.0
    return {"losses": losses, "weights": weights_of(model)}


def by_hand_several_counts(steps: int = 3) -> dict[str, Any]:
    one, other = model_of(), model_of()
    x, y, mask = tokens()
    for first in range(0, 48, 4 * steps):
        window = slice(first, first + 4 * steps)
        with tf.GradientTape() as tape:
            off = tf.reshape(one(x[window].reshape(-1, 5), training=True), y[window].shape) - y[window]
            loss = tf.reduce_sum(mask[window][..., None] * off**2) / max(mask[window].sum(), 1)
            loss += tf.reduce_sum(tf.abs(off)) / (2 * tf.size(off, tf.float64))
        gradients = tape.gradient(loss, one.trainable_variables)
        for gradient, v in zip(gradients, one.trainable_variables, strict=True):
            v.assign_sub(0.1 * gradient)
        with tf.GradientTape() as tape:
            off = tf.reshape(other(x[window].reshape(-1, 5), training=True), y[window].shape) - y[window]
            loss = tf.reduce_sum(off**2) / (7 * (window.stop - window.start))
        for gradient, v in zip(tape.gradient(loss, other.trainable_variables), other.trainable_variables, strict=True):
            v.assign_sub(0.1 * gradient)
    return {"weights": weights_of(one, other)}


def several_counts(steps: int = 3, *, is_traced: bool = True) -> dict[str, Any]:
    """Two losses of one model and one of another, each divided by a count of its own."""
    loop = loop_of(accumulate=steps)
    one, other, batches = loop.prepare(model_of(), model_of(), tf.data.Dataset.from_tensor_slices(tokens()).batch(4))

    def step(x: Any, y: Any, mask: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            off = tf.reshape(one(tf.reshape(x, (-1, 5)), training=True), tf.shape(y)) - y
            masked, whole = tf.reduce_sum(mask[..., None] * off**2), tf.reduce_sum(tf.abs(off))
            squares = (tf.reshape(other(tf.reshape(x, (-1, 5)), training=True), tf.shape(y)) - y) ** 2
            total = tf.reduce_sum(squares)
        of_masked = loop.gradient(tape, masked, one.trainable_variables, count=tf.reduce_sum(mask))
        of_whole = loop.gradient(tape, whole, one.trainable_variables, count=2 * tf.size(off))
        of_other = loop.gradient(tape, total, other.trainable_variables, count=7 * tf.shape(x)[0])
        for a, b, v in zip(of_masked, of_whole, one.trainable_variables, strict=True):
            v.assign_sub(0.1 * (a + b))
        for gradient, v in zip(of_other, other.trainable_variables, strict=True):
            v.assign_sub(0.1 * gradient)

    if is_traced:
        step = loop.function(step)
    for x, y, mask in batches:
        step(x, y, mask)
    return {"weights": weights_of(one, other)}


def by_hand_several_counts_eager() -> dict[str, Any]:
    return by_hand_several_counts(2)


def several_counts_eager() -> dict[str, Any]:
    return several_counts(2, is_traced=False)


def by_hand_one_batch_several_counts() -> dict[str, Any]:
    return by_hand_several_counts(1)


def one_batch_several_counts() -> dict[str, Any]:
    return several_counts(1)


# -- windows, averages and two passes ----------------------------------------------------------------------------------


def averaging() -> Any:
    return keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=None)


def twice_loss(model: Any, x: Any, y: Any) -> Any:
    return squares(model, x, y) + squares(model, 0.5 * x, y)


def by_hand_averaged() -> dict[str, Any]:
    """Windows of three batches, and the last of an epoch has two; a loop that is left early goes on with its window."""
    model, optimizer, losses = model_of(), averaging(), []
    batches = list(tf.data.Dataset.from_tensor_slices(rows()).batch(8))
    given = [*batches[:2], *batches]
    for window in [given[first : first + 3] for first in range(0, len(given), 3)]:
        x, y = (tf.concat(parts, 0) for parts in zip(*window, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(twice_loss(model, x, y))
        losses += [float(tf.reduce_mean(twice_loss(model, *batch))) for batch in window]
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return {"losses": losses, "weights": weights_of(model, optimizer), "steps": 6}


def averaged() -> dict[str, Any]:
    """A model called twice, an average of its weights, a loop that is left within a window, and another within it."""
    loop = loop_of(accumulate=3)
    dataset = tf.data.Dataset.from_tensor_slices(rows())
    model, optimizer, batches, test = loop.prepare(model_of(), averaging(), dataset.batch(8), dataset.batch(40))

    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(twice_loss(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss

    losses = []
    for stop in (2, 99):
        for number, (x, y) in enumerate(batches):
            loop.gather(model(a) for a, _ in test)
            losses.append(float(loop.reduce(step(x, y))))
            if number + 1 == stop:
                break
    return {"losses": losses, "weights": weights_of(model, optimizer), "steps": loop.step}


def tokenless() -> dict[str, Any]:
    """No token counts anywhere: nothing is trained, and nothing is NaN."""
    loop = loop_of(accumulate=2)
    model, optimizer, batches = loop.prepare(model_of(), keras.optimizers.SGD(0.1), data(40))

    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            total = 0.0 * tf.reduce_sum(squares(model, x, y))
        gradients = loop.gradient(tape, total, model.trainable_variables, count=tf.constant(0.0))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return total

    means = [float(loop.reduce(step(x, y), count=0)) for x, y in batches]
    return {"means": means, "same": weights_of(model) == weights_of(model_of())}


def exchanges() -> dict[str, Any]:
    """How often gradients are exchanged, eagerly, and by a trace of batches that end no update."""
    loop = loop_of(accumulate=3)
    model, optimizer, batches = loop.prepare(model_of(), keras.optimizers.SGD(0.1), data(size=8))
    reduce, n_reduced = tf.raw_ops.CollectiveReduceV2, 0

    def counted(**settings: Any) -> Any:
        nonlocal n_reduced
        n_reduced += 1
        return reduce(**settings)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905

    tf.raw_ops.CollectiveReduceV2 = counted
    try:
        for x, y in batches:
            step(x, y)
        eager, n_reduced, traced = n_reduced, 0, []
        step = loop.function(step)
        for x, y in batches:
            step(x, y)
            traced.append(n_reduced)  # grows with a trace that exchanges
    finally:
        tf.raw_ops.CollectiveReduceV2 = reduce
    return {"eager": eager, "steps": loop.step, "traced": traced[:3]}


# -- other loops -------------------------------------------------------------------------------------------------------


def by_hand_adversarial() -> dict[str, Any]:
    one, other = model_of(), model_of()
    first, second = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)
    for x, y in data():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(one, x, y))
        first.apply_gradients(zip(tape.gradient(loss, one.trainable_variables), one.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(other, x, one(x)))
        second.apply_gradients(
            zip(tape.gradient(loss, other.trainable_variables), other.trainable_variables, strict=True)
        )
    return {"weights": weights_of(one, other)}


def adversarial() -> dict[str, Any]:
    """Two models and optimizers; the optimizers are built by the loop. Gradients are computed in one function."""
    loop = loop_of()
    one, other, first, second, batches = loop.prepare(
        model_of(), model_of(), keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05), data()
    )

    @loop.function
    def step(x: Any, y: Any) -> None:
        for model, optimizer, target in ((one, first, lambda: y), (other, second, lambda: one(x))):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(squares(model, x, target()))
            gradients = loop.gradient(tape, loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905

    for x, y in batches:
        step(x, y)
    return {"weights": weights_of(one, other), "steps": loop.step}


class Affine(tf.Module):
    """A model without Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones((5, 1), tf.float64))
        self.b = tf.Variable(tf.zeros((1,), tf.float64))

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


def by_hand_eager() -> dict[str, Any]:
    model = Affine()
    x, y = rows()
    for first in range(0, N_ROWS, 32):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x[first : first + 32]) - y[first : first + 32]) ** 2)
        for gradient, v in zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True):
            v.assign_sub(0.1 * gradient)
    return {"weights": weights_of(model)}


def eager() -> dict[str, Any]:
    """A tf.Module without optimizer and without loop.function, on a stream of unknown length."""

    def stream() -> Iterator[Any]:
        x, y = rows()
        yield from ((x[first : first + 16], y[first : first + 16]) for first in range(0, N_ROWS, 16))

    loop = loop_of(accumulate=2)
    signature = tuple(tf.TensorSpec((None, n), tf.float64) for n in (5, 1))
    batches = tf.data.Dataset.from_generator(stream, output_signature=signature)
    model, batches = loop.prepare(Affine(), batches)
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        for gradient, v in zip(
            loop.gradient(tape, loss, model.trainable_variables), model.trainable_variables, strict=True
        ):
            v.assign_sub(0.1 * gradient)
    return {"weights": weights_of(model), "steps": loop.step}


def by_hand_scaled() -> dict[str, Any]:
    """Losses of `scaled` in one process, without scale; the update with a loss that is not finite is left out."""
    model, optimizer = model_of("float32"), keras.optimizers.SGD(0.05)
    x, y = rows(96)
    for first in range(0, 96, 16):
        if first == 32:
            continue
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, x[first : first + 16], y[first : first + 16]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return {"weights": weights_of(model), "scale": 2.0**14, "skipped": [2], "steps": 5}


def scaled() -> dict[str, Any]:
    """One row of the third batch is infinite, in one process."""
    loop = loop_of()
    x, y = rows(96)
    y[47] = np.inf
    model, optimizer, batches = loop.prepare(
        model_of("float32"),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
        tf.data.Dataset.from_tensor_slices((x, y)).batch(16),
    )

    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, x, y))
            scaled = optimizer.scale_loss(loss)
        gradients = loop.gradient(tape, scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss

    skipped = []
    for i, (a, b) in enumerate(batches):
        step(a, b)
        skipped += [i] if optimizer.was_skipped else []
    scale = float(optimizer.dynamic_scale)
    return {"weights": weights_of(model), "scale": scale, "skipped": skipped, "steps": loop.step}


def statistics() -> dict[str, Any]:
    """Batch normalization over the rows of each process: moving averages are alike in all."""
    loop = loop_of(sync_batchnorm=False)
    norm, drop = keras.layers.BatchNormalization(dtype="float64"), keras.layers.Dropout(0.5, dtype="float64")
    model, optimizer, batches = loop.prepare(model_of("float64", norm, drop), optimizer_of(), data(size=64))

    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905

    for x, y in batches:
        step(x, y)
    moving = [np.asarray(norm.moving_mean).tolist(), np.asarray(norm.moving_variance).tolist()]
    every = loop_all(loop, moving)
    drops = loop_all(loop, np.asarray(drop(tf.ones((1, 64)), training=True)).tolist())
    return {"alike": every.count(every[0]), "drops": len({*map(str, drops)}), "moved": moving[0] != [0.0] * 8}


def evaluation() -> dict[str, Any]:
    """103 rows, in two epochs."""
    loop = loop_of()
    x = np.arange(103.0)
    texts = np.array([f"row {i}" for i in range(103)])
    test = loop.prepare(tf.data.Dataset.from_tensor_slices({"x": x, "text": texts}).batch(20))
    found = []
    for _ in range(2):
        every = loop.gather(
            {"twice": 2 * batch["x"], "of": (batch["text"], None), "n": tf.size(batch["x"])} for batch in test
        )
        in_order = every["twice"].numpy().tolist() == (2 * x).tolist() and every["of"][1] is None
        found.append(in_order and [text.decode() for text in every["of"][0]] == texts.tolist())
        found.append(sum(every["n"]))
    ragged = loop.gather([tf.fill((len(batch["x"]), i + 1), i) for i, batch in enumerate(test)][-1], pad=-1)
    return {"found": found, "kind": type(every["of"]).__name__, "ragged": ragged.shape.as_list()}


def values() -> dict[str, Any]:
    loop = loop_of(seed=5)
    rank, size = loop.process_index, loop.num_processes
    given = {"a": tf.constant([1.0, rank]), "b": rank}
    drawn = float(tf.random.normal(())), float(np.random.normal()), float(keras.random.normal(()))
    with loop.main_process_first():
        pass
    loop.barrier()
    return {
        "reduced": [loop.reduce(given, how)["a"].numpy().tolist() for how in ("mean", "sum", "max", "min")],
        "expected": [[1, (size - 1) / 2], [size, size * (size - 1) / 2], [1, size - 1], [1, 0]],
        "broadcast": loop.broadcast(given, size - 1)["a"].numpy().tolist() == [1.0, size - 1],
        "any": [loop.any(rank == size - 1), loop.any(False)],
        "drawn": len({*map(str, loop_all(loop, drawn))}),
    }


def refused() -> dict[str, Any]:
    """Texts of what is refused in several processes alone."""
    found = {}

    def attempt(name: str, call: Any) -> None:
        try:
            call()
        except AnyaccelError as error:
            found[name] = str(error)

    loop = loop_of()
    rank = loop.process_index
    norm = keras.layers.BatchNormalization(dtype="float64")
    attempt("lengths", lambda: next(iter(loop.prepare(data(100 + 16 * rank)))))
    attempt("rows", lambda: next(iter(loop.prepare(tf.data.Dataset.from_tensors(float(rank))))))
    attempt("other rows", lambda: next(iter(loop.prepare(data().shard(loop.num_processes, rank).take(1)))))
    attempt("by hand", lambda: sum(len(x) for x, _ in loop.prepare(data(9, 4))))
    attempt("norm", lambda: loop.prepare(model_of("float64", norm)))
    attempt("sync", lambda: loop_of(sync_batchnorm=True))
    attempt("xla", lambda: loop.function(abs, jit_compile=True))
    model = model_of()
    model.layers[-1].bias.assign([float(rank)])
    attempt("weights", lambda: loop.prepare(model))
    return found


# -- going on ----------------------------------------------------------------------------------------------------------


def resumed(folder: str, stop: str = "0", process: str = "1") -> dict[str, Any]:
    """Two epochs of 14 batches by two, saved after each second update; `process` is killed after batch `stop`."""
    loop = loop_of(accumulate=2, seed=3)
    drop = keras.layers.Dropout(0.3, dtype="float64")
    model, optimizer, batches = loop.prepare(model_of("float64", drop), keras.optimizers.Adam(0.01), data(size=8))

    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss

    losses, number = {}, 0
    for epoch in loop.epochs(2, save=folder, every=2):
        for x, y in batches:
            place = f"{epoch} {batches.given}"
            loss = step(x, y)
            losses[place] = float(loop.reduce(loss))
            number += 1
            if number == int(stop) and loop.process_index == int(process):
                os.kill(os.getpid(), signal.SIGKILL)
    return {"losses": losses, "weights": weights_of(model), "steps": loop.step}


CASES: dict[str, Any] = {
    case.__name__: case
    for case in (
        updates, single_precision, one_row, accumulated, token_means, adversarial, eager, scaled, statistics,
        evaluation, values, refused, resumed, several_counts, several_counts_eager, one_batch_several_counts,
        averaged, tokenless, exchanges,
    )
}  # fmt: skip

if __name__ == "__main__":
    told = {}
    for text in sys.argv[1].split(","):
        name, *given = text.split(":")
        told[name] = CASES[name](*given)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(told), flush=True)
