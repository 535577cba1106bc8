"""Keras on TensorFlow: `fit`."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

from loops.turns import Turn
from loops.workloads import Workload, workload


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes how long each epoch takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the watch."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop it."""
        self.seconds.append(time.perf_counter() - self._began)


def fit(name: str, *, together: int = 1) -> Turn:
    """The second of two epochs of `fit`, from arrays, shuffled.

    Args:
        name: of the workload.
        together: `steps_per_execution`, the setting by which Keras's guide makes small steps fast.
    """
    work = workload(name)
    x, y = work.data()
    if work.pictures:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))  # channels last, as TensorFlow has it on the CPU
    model = made(work, min(together, work.steps))

    def turn() -> float:
        watch = Watch()
        model.fit(x, y, batch_size=work.batch, epochs=2, verbose=0, callbacks=[watch])
        return watch.seconds[-1]

    return turn


def made(work: Workload, together: int) -> Any:
    """A compiled model."""
    layers = keras.layers
    if work.pictures:
        channels, height, width = work.features
        body = [keras.Input((height, width, channels))]
        for wide in work.widths:
            body += [layers.Conv2D(wide, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)]
        body.append(layers.Flatten())
    else:
        body = [keras.Input(work.features), *(layers.Dense(wide, activation="relu") for wide in work.widths)]
    model = keras.Sequential([*body, layers.Dense(work.outputs)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if work.classes else "mse"
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, steps_per_execution=together)
    return model
