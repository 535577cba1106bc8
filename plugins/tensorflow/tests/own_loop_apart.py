"""Processes of a loop of TensorFlow of which the last does something else, or has no memory: FOLDER, and cases.

All processes go on after a case whose error all of them have; each writes the texts to the folder. The last case may
end them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_loop_script as script  # sets what TensorFlow reads when it is imported
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import AnyaccelError

FITS = 8
"""The largest batch for which there is memory."""
ENDING = ("raises", "killed", "alone", "hangs")
MEMORY = ("data", "forward", "backward", "statistics", "step", "end", "save", "all", "eager", "never")


def batches_of(case: str, is_last: bool) -> Any:
    """Batches of 16 rows, of which the last process may have others."""

    def stream() -> Iterator[Any]:
        x, y = script.rows(96)
        if case == "content" and is_last:
            x = x[::-1]
        for number, first in enumerate(range(0, 96, 16)):
            if case == "stream" and is_last and number == 3:
                return
            rows = slice(first, first + (8 if case == "fewer" and is_last and number == 3 else 16))
            yield x[rows], y[rows]

    dtype = tf.float32 if case == "dtype" and is_last else tf.float64
    signature = tuple(tf.TensorSpec((None, n), dtype) for n in (5, 1))
    dataset = tf.data.Dataset.from_generator(stream, output_signature=signature)
    if case != "stream":
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(6))
    return dataset.map(lambda x, y: {"x": x, "y": y}) if case == "structure" and is_last else dataset


def step_of(loop: Any, model: Any, optimizer: Any) -> Any:
    @loop.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(script.squares(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss

    return step


def trained(case: str, folder: Path) -> None:
    loop = script.loop_of()
    rank = loop.process_index
    is_last = rank == loop.num_processes - 1
    model, optimizer, batches = loop.prepare(script.model_of(), script.optimizer_of(), batches_of(case, is_last))
    step = step_of(loop, model, optimizer)
    for number, (x, y) in enumerate(batches):
        if number == 2 and is_last:
            if case == "raises":
                raise ValueError("in the loss")
            if case == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "hangs":
                time.sleep(600)
        if number == 2 and case == "alone":
            if rank == 0:
                loop.save(folder / "alone")
            time.sleep(3)  # so that the first process is the first whose waiting ends
        step(x, y)
    if case == "foreign":
        loop.save(folder / "foreign")


def foreign(folder: Path) -> None:
    """Two runs save into one folder."""
    trained("foreign", folder)
    trained("foreign", folder)


def calls(folder: Path) -> None:
    """The last process adds up, the others ask."""
    loop = script.loop_of()
    if loop.process_index < loop.num_processes - 1:
        loop.any(False)
    else:
        loop.reduce(1.0, "sum")


def unplaced(folder: Path) -> None:
    """`prepare` alone joins nothing."""
    aa.prepare(script.data())


def twice(folder: Path) -> None:
    """A model that is prepared twice, and gradients that are applied twice."""
    loop = script.loop_of()
    model, optimizer, batches = loop.prepare(script.model_of(), script.optimizer_of(), script.data())
    try:
        loop.prepare(model)
    except AnyaccelError as error:
        assert "prepared already" in str(error)
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(script.squares(model, x, y))
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        for _ in range(2):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def late(folder: Path) -> None:
    """A search for a batch size after a model was prepared."""
    loop = script.loop_of()
    loop.prepare(script.model_of())
    loop.find_batch_size(lambda size: size)


OTHERS = {case.__name__: case for case in (foreign, calls, unplaced, twice, late)}


# -- out of memory -----------------------------------------------------------------------------------------------------


def run_out(x: Any) -> Any:
    """An error of TensorFlow itself."""
    with tf.device("/CPU:0"):
        drawn = tf.random.uniform((2**22, 2**22, 8), dtype=tf.float64)  # which no optimizer of graphs leaves out
        return x + tf.cast(tf.reduce_sum(drawn), x.dtype)


@tf.custom_gradient
def fails_backward(x: Any) -> Any:
    return tf.identity(x), run_out


def searched(loop: Any, case: str, folder: Path, size: int) -> list[Any]:
    """Losses and weights of a training with batches of a size, of which the last process may run out of memory."""
    fails = (size > FITS or case == "never") and (case == "all" or loop.process_index == loop.num_processes - 1)
    norm = [script.keras.layers.BatchNormalization(dtype="float64")] if case == "statistics" else []
    x, y = script.rows(70)

    def read(i: Any) -> Any:
        if fails and case == "data" and i >= 25:
            raise MemoryError("8 bytes")
        return x[i], y[i]

    rows = tf.data.Dataset.range(70).map(lambda i: tf.numpy_function(read, [i], (tf.float64, tf.float64)))
    rows = rows.map(lambda a, b: (tf.ensure_shape(a, (5,)), tf.ensure_shape(b, (1,)))).batch(size)
    model, optimizer, batches = loop.prepare(script.model_of("float64", *norm), script.optimizer_of(), rows)
    losses = []

    def step(x: Any, y: Any, fails_now: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = script.squares(model, x, y)
            if fails and case in ("forward", "statistics", "all", "never", "eager"):
                errors = tf.cond(fails_now, lambda: run_out(errors), lambda: errors)
            if fails and case == "backward":
                errors = tf.cond(fails_now, lambda: fails_backward(errors), lambda: errors)
            loss = tf.reduce_mean(errors)
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        if fails and case == "step":
            gradients = [tf.cond(fails_now, lambda g=g: run_out(g), lambda g=g: g) for g in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss

    if case != "eager":
        step = loop.function(step)
    for number, (a, b) in enumerate(batches):
        losses.append(float(loop.reduce(step(a, b, tf.constant(number == 1)))))
    if case == "save":
        if fails:
            run_out(tf.zeros(()))
        loop.save(folder / "checkpoint")
    if fails and case == "end":
        run_out(tf.zeros(()))
    return [size, losses, script.weights_of(model)]


def memory(case: str, folder: Path) -> Any:
    """What a search for a batch size comes to in this process."""
    loop = script.loop_of(sync_batchnorm=False)
    tried: list[int] = []

    def train(size: int) -> list[Any]:
        tried.append(size)
        return searched(loop, case, folder, size)

    try:
        return [tried, loop.step, loop.find_batch_size(train, start=2 if case == "never" else 16), loop.step]
    except (AnyaccelError, tf.errors.OpError) as error:
        return [tried, f"{type(error).__name__}: {error}"]


if __name__ == "__main__":
    folder, told = Path(sys.argv[1]), {}
    rank = script.loop_of().process_index
    for case in sys.argv[2].split(","):
        try:
            if case in MEMORY:
                told[case] = memory(case, folder)
                continue
            OTHERS[case](folder) if case in OTHERS else trained(case, folder)
            told[case] = "no error"
        except AnyaccelError as error:
            if case in ENDING:
                raise
            told[case] = f"{type(error).__name__}: {error}"
        finally:
            (folder / f"{rank}.json").write_text(json.dumps(told))
