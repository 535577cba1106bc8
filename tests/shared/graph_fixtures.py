"""Fixtures of tests of graphs: simulated devices, a small table and small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from anyaccel import FeatureSet, SequentialMLP
from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend import Module, simulate


@pytest.fixture
def sims() -> Iterator[object]:
    """Two simulated devices."""
    with simulate(2) as devices:
        yield devices


@pytest.fixture
def table() -> Callable[..., FeatureSet]:
    """`table(label, x=(shape, dtype), y=(shape, dtype), n=24)`: a feature set with a feature and a target."""

    def make(label="fs", x=((4,), "float32"), y=((), "float32"), n=24) -> FeatureSet:
        draw = np.random.default_rng(0)
        data, keys = {}, []
        for name, given in (("x", x), ("y", y)):
            if given is not None:
                (shape, dtype), keys = given, [*keys, name]
                values = draw.normal(size=(n, *shape)) if "float" in dtype else draw.integers(0, 3, size=(n, *shape))
                data[name] = values.astype(dtype)
        return FeatureSet.from_dict(label, data, ["x"], ["y"] if y is not None else ())

    return make


@pytest.fixture
def mlp() -> Callable[..., SequentialMLP]:
    """`mlp(3)`: a small model with three outputs; `mlp(dtype="float64")` and so on."""

    def make(*output_shape: int, n_layers=1, hidden_dim=4, **settings) -> SequentialMLP:
        return SequentialMLP(output_shape or (1,), n_layers=n_layers, hidden_dim=hidden_dim, **settings)

    return make


class Parts(Module):
    """Cuts its input [n] into pieces of these sizes along the last axis, scaled by a parameter: several outputs."""

    dtype = "float32"

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.ends = np.cumsum(sizes)
        self.parameters["scale"] = np.ones(1, "float32")

    def apply(self, values, inputs, *, train, key):
        (x,), scale = inputs, values["scale"]
        bounds = list(zip([0, *self.ends[:-1]], self.ends, strict=True))

        def pullback(cotangents):
            whole = np.concatenate(cotangents, axis=-1)
            return {"scale": np.sum(whole * x[..., : self.ends[-1]]).reshape(1)}, (whole * scale,)

        return VjpResult(tuple(x[..., low:high] * scale for low, high in bounds), pullback)


@pytest.fixture
def parts() -> type[Parts]:
    return Parts
