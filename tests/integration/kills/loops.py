"""Loops: the ways to train whose processes are killed; each is the same to the bit whenever it runs undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa

ROWS, COLUMNS, EPOCHS = 256, 6, 3


def table() -> aa.FeatureSet:
    """Rows for training and validation."""
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": np.sin(x[:, :1])}, ["x"], ["y"])
    data.split_random({"train": 0.75, "val": 0.25}, seed=0)
    return data


class Items:
    """A map-style data set."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        x = np.full(COLUMNS, index % 17, "float32")
        return x, x[:1] / 17


def numpy_model(**settings: Any) -> Any:
    """Layers with dropout."""
    from anyaccel.numpy_backend import SequentialMLP

    return SequentialMLP(dropout=0.2, **settings)


def large_model() -> Any:
    """A state of 50 MB, so that many processes are killed while it is written."""
    return numpy_model(hidden_dim=1200, n_layers=3)


def torch_model() -> Any:
    """Dropout and batch statistics."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))


def jax_model() -> Any:
    """Dropout and batch statistics."""
    from flax import nnx

    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        nnx.Linear(COLUMNS, 16, rngs=rngs),
        nnx.BatchNorm(16, rngs=rngs),
        nnx.relu,
        nnx.Dropout(0.3, rngs=rngs),
        nnx.Linear(16, 1, rngs=rngs),
    )


def tensorflow_model(*, dropout: bool = True) -> Any:
    """Dropout and batch statistics."""
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    drops = [layers.Dropout(0.3)] if dropout else []
    return keras.Sequential(
        [layers.Input((COLUMNS,)), layers.Dense(16), layers.BatchNormalization(), *drops, layers.Dense(1)]
    )


def tensorflow_model_without_dropout() -> Any:
    """For compiled steps, in which Keras' dropout does not draw the same in each process."""
    return tensorflow_model(dropout=False)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A way to train.

    Attributes:
        model: of the only node.
        share: of all kills, how many are of this loop.
        every: steps between checkpoints.
        plugin: the only one that is loaded; none for NumPy.
        imports: what a process imports before it forks those that are killed.
        items: whether the data is a map-style data set.
        pause: seconds after each call of steps, so that not all processes are killed while they write.
        wait: whether the loop waits until a checkpoint is written.
        exact: whether two undisturbed runs are the same to the bit. Those of compilers that decide by time which steps
            they compile agree up to rounding.
        settings: of the phase.
    """

    model: Callable[[], Any]
    share: float
    every: int = 5
    plugin: str = ""
    imports: tuple[str, ...] = ()
    items: bool = False
    pause: float = 0.0
    wait: bool = False
    exact: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def graph(self) -> aa.ModelGraph:
        """A graph with new weights, the same each time."""
        data = self._data()
        node = aa.ModelNode("net", self.model(), data.reference() if not self.items else data.example.reference())
        schedule = aa.Schedule("cosine", steps=40, final=0.1)
        return aa.ModelGraph([node], aa.Optimizer("adam", schedule=schedule), seed=1)

    def phase(self, folder: Path | None) -> aa.TrainPhase:
        """A phase that writes checkpoints into a folder."""
        data: Any = {"data": self._data()} if self.items else "train"
        return aa.TrainPhase(
            "train",
            data=data,
            losses=[aa.AppliedLoss("mse")],
            batch_size=16,
            epochs=EPOCHS,
            validation=None if self.items else "val",
            callbacks=[] if self.items else [aa.EarlyStopping("val_loss", patience=50, restore_best=True)],
            checkpoint=None if folder is None else aa.Checkpoint(folder, every=self.every, keep=2, wait=self.wait),
            **self.settings,
        )

    def _data(self) -> Any:
        return aa.MapSource("data", Items(), features="x", target="y") if self.items else table()


TORCH: dict[str, Any] = {"plugin": "torch", "imports": ("torch", "anyaccel_torch")}
JAX: dict[str, Any] = {"plugin": "jax", "imports": ("jax", "flax.nnx", "optax", "anyaccel_jax")}
TENSORFLOW: dict[str, Any] = {"plugin": "tensorflow", "imports": ("tensorflow", "keras", "anyaccel_tensorflow")}
COMPILED = {"compile": "steps"}
STREAMED, OFF = {"residency": "streamed"}, {"compile": "off"}

LOOPS: dict[str, Loop] = {
    "numpy": Loop(share=0.1, model=numpy_model, pause=0.02),
    "numpy large, waiting": Loop(share=0.05, model=large_model, every=2, wait=True),
    "numpy streamed": Loop(share=0.1, model=numpy_model, every=1, settings=STREAMED),
    "numpy accumulated": Loop(share=0.08, model=numpy_model, every=3, pause=0.02, settings={"accumulate": 2}),
    "numpy items": Loop(share=0.06, model=numpy_model, items=True),
    "numpy large": Loop(share=0.04, model=large_model, every=2),
    "torch": Loop(share=0.11, model=torch_model, **TORCH, pause=0.02, settings=OFF),
    "torch streamed": Loop(share=0.06, model=torch_model, **TORCH, every=3, settings=OFF | STREAMED),
    "torch accumulated": Loop(share=0.05, model=torch_model, **TORCH, every=2, settings=OFF | {"accumulate": 3}),
    "torch compiled": Loop(share=0.03, model=torch_model, **TORCH, exact=False, settings=COMPILED),
    "jax": Loop(share=0.09, model=jax_model, **JAX, pause=0.02, settings=OFF),
    "jax compiled": Loop(share=0.06, model=jax_model, **JAX, settings=COMPILED),
    "jax streamed, accumulated": Loop(
        share=0.05, model=jax_model, **JAX, every=2, settings=STREAMED | {"accumulate": 2}
    ),
    "tensorflow": Loop(share=0.08, model=tensorflow_model, **TENSORFLOW, pause=0.02, settings=OFF),
    "tensorflow compiled": Loop(
        share=0.04, model=tensorflow_model_without_dropout, **TENSORFLOW, exact=False, settings=COMPILED
    ),
}
