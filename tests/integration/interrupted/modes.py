"""Modes: the ways to train that are interrupted. Every parameter moves by one `RATE` a step, so that it tells how many
steps it has seen.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import anyaccel as aa

ROWS, SIZE, RATE = 512, 8, 2.0**-10
X, Y = np.ones((ROWS, 3), "float32"), np.full((ROWS, 1), -1e6, "float32")
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, "x", "y")


def numpy_model() -> Any:
    from anyaccel.numpy_backend import Dense

    return Dense(1)


def torch_model() -> Any:
    from torch import nn

    return nn.Linear(3, 1)


def tensorflow_model() -> Any:
    import keras

    return keras.layers.Dense(1)


def jax_model() -> Any:
    from flax import linen

    return linen.Dense(1)


class Items:
    """A map-style data set."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def generated() -> Iterator[Any]:
    for start in range(0, ROWS, SIZE):
        time.sleep(0.0005)
        yield X[start : start + SIZE], Y[start : start + SIZE]


def data_loader() -> Any:
    from torch.utils.data import DataLoader

    multiprocessing.set_forkserver_preload(["torch", __name__])  # workers then start at once
    return DataLoader(Items(), batch_size=SIZE, num_workers=2, multiprocessing_context="forkserver")  # type: ignore[arg-type]


def tf_data() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE).prefetch(1)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to train.

    Attributes:
        models: one node for each.
        data: what a phase is given.
        settings: of the phase.
        validates: whether it has a validation.
        seconds: until when a phase is interrupted that is not interrupted at a stage.
        signals: how many signals follow each other at most.
    """

    models: tuple[Callable[[], Any], ...]
    data: Callable[[], Any] = lambda: DATA
    settings: dict[str, Any] = field(default_factory=dict)
    validates: bool = False
    seconds: float = 0.4
    signals: int = 1

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that it needs beside NumPy."""
        named = {torch_model: "torch", jax_model: "jax", tensorflow_model: "tensorflow"}
        return tuple(named[model] for model in self.models if model in named)

    def phase(self, epochs: int) -> aa.TrainPhase:
        """A phase on the graph of `graph`."""
        data = self.data()
        more = {} if isinstance(data, dict) else {"batch_size": SIZE}
        losses = [aa.AppliedLoss("mae", on=f"n{i}") for i in range(len(self.models))]
        validation = aa.EvalPhase("v", data=DATA, metrics=["mae"]) if self.validates else None
        return aa.TrainPhase(
            "t", data=data, losses=losses, epochs=epochs, validation=validation, **more, **self.settings
        )

    def graph(self) -> aa.ModelGraph:
        """A graph of one node for each model, all at zero."""
        nodes = [aa.ModelNode(f"n{i}", make(), DATA.reference(["x"], ["y"])) for i, make in enumerate(self.models)]
        graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=RATE)).build()
        parameters = {name: np.zeros_like(array) for name, array in graph.state().items() if "/parameters/" in name}
        return graph.load_state({**graph.state(), **parameters})


def items_by_threads() -> Any:
    return {"data": aa.MapSource("data", Items(), features="x", target="y", workers=2)}


WORKERS: dict[str, Any] = {
    "models": (torch_model,),
    "data": lambda: {"data": data_loader()},
    "settings": {"compile": "off"},
}

MODES: dict[str, Mode] = {
    "numpy, two nodes, validation": Mode(models=(numpy_model, numpy_model), validates=True),
    "numpy streamed": Mode(models=(numpy_model,), settings={"residency": "streamed"}),
    "numpy from a generator": Mode(models=(numpy_model,), data=lambda: {"data": generated}),
    "numpy from items by threads": Mode(models=(numpy_model,), data=items_by_threads),
    "torch off": Mode(models=(torch_model,), settings={"compile": "off"}, validates=True),
    "torch auto": Mode(models=(torch_model,), settings={"compile": "auto"}),
    "torch steps": Mode(models=(torch_model,), settings={"compile": "steps"}, seconds=12.0),
    "torch streamed": Mode(models=(torch_model,), settings={"residency": "streamed"}),
    "torch with workers": Mode(**WORKERS),
    "torch with workers, many signals": Mode(**WORKERS, signals=4),
    "jax steps": Mode(models=(jax_model,), settings={"compile": "steps"}, validates=True),
    "tensorflow from tf.data": Mode(models=(tensorflow_model,), data=lambda: {"data": tf_data()}, seconds=2.0),
    "three frameworks": Mode(models=(torch_model, jax_model, tensorflow_model), validates=True, seconds=2.0),
}
