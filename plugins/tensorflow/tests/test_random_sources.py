"""Random numbers of data of TensorFlow: rows are those of the data set, and go on within an epoch or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa

ROWS = 24
X = np.stack([np.arange(ROWS) / ROWS, np.ones(ROWS)], 1).astype("float32")


class Seeded:
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        tf.random.set_seed(i)
        return tf.random.normal([2]), X[i, :1]


class Stop(aa.Callback):
    def __init__(self, at: int) -> None:
        self.left = at

    def step_end(self, run: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def net() -> Any:
    layers = [keras.layers.Input((2,)), keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def run(source: Any, folder: Path | None = None, stop: int = 0, **settings: Any) -> list[float]:
    graph = aa.ModelGraph([aa.ModelNode("net", net(), source.reference())], aa.Optimizer("sgd", lr=0.1), seed=4)
    phase = aa.TrainPhase(
        "t",
        data=source,
        losses=aa.AppliedLoss("mse", on="net"),
        epochs=3,
        compile="off",
        checkpoint=None if folder is None else aa.Checkpoint(folder),
        callbacks=[Stop(stop)] if stop else [],
        **settings,
    )
    experiment = aa.Experiment("e", graph, progress="none")
    return list(experiment.run_phase(phase, resume="never" if folder is None else "auto").loss)


def test_losses_are_those_of_the_rows_of_a_data_set_that_seeds_itself() -> None:
    data = Seeded()
    rows = np.stack([data[i][0].numpy() for i in range(ROWS)])
    keras.utils.set_random_seed(1)
    table = aa.FeatureSet.from_dict("d", {"x": rows, "y": X[:, :1]}, ["x"], ["y"])
    expected = run(table, sampler=aa.SimpleSampler(4))
    keras.utils.set_random_seed(1)
    losses = run(aa.MapSource("d", data, features="x", target="y"), sampler=aa.SimpleSampler(4))
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def table() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, X[:, :1]))


def generated() -> Callable[[], Any]:
    generator = tf.random.Generator.from_seed(3)

    def batches() -> Any:
        for i in range(0, ROWS, 4):
            yield X[i : i + 4] + generator.normal([4, 2]), X[i : i + 4, :1]

    return batches


@pytest.mark.parametrize(
    "make",
    [
        lambda: table().shuffle(ROWS, seed=2, reshuffle_each_iteration=False).batch(4),
        lambda: lambda epoch: table().shuffle(ROWS, seed=epoch).batch(4),
        generated,
    ],
    ids=["one order", "seed of the epoch", "a Generator"],
)
def test_a_run_goes_on_as_if_it_had_not_been_interrupted(make: Callable[[], Any], tmp_path: Path) -> None:
    def source() -> Any:
        keras.utils.set_random_seed(1)
        return aa.IterableSource("d", make(), features="x", target="y")

    expected = run(source())
    with pytest.raises(KeyboardInterrupt):
        run(source(), tmp_path, stop=15)
    np.testing.assert_allclose(run(source(), tmp_path), expected, rtol=1e-6)


def test_an_order_of_tf_data_that_depends_on_how_often_it_was_read_is_refused(tmp_path: Path) -> None:
    """TensorFlow does not tell how far it is; `seed of the epoch` above follows the hint."""

    def source() -> Any:
        return aa.IterableSource("d", table().shuffle(ROWS, seed=2).batch(4), features="x", target="y")

    with pytest.raises(KeyboardInterrupt):
        run(source(), tmp_path, stop=15)
    with pytest.raises(aa.errors.SourceError, match="returns other rows than before the checkpoint") as told:
        run(source(), tmp_path)
    assert "a function with a parameter `epoch`" in told.value.hint
