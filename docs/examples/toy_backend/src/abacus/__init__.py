"""abacus: a pretended framework with tensors, places to put them, and one model that knows its own gradient.

It stands for a library of somebody else: nothing here knows of anyaccel. A place is `"desk"` or `"frame N"`; every
function of NumPy is there for tensors, such as `abacus.sum` and `abacus.exp`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

DESK = "desk"
FRAMES = ("frame 0", "frame 1")

Back = Callable[["Tensor"], tuple[dict[str, "Tensor"], "Tensor"]]

_here: ContextVar[str] = ContextVar("abacus", default=DESK)


class Tensor(NDArrayOperatorsMixin):
    """Numbers at a place; those of one computation must all be at the same."""

    def __init__(self, values: Any, place: str | None = None) -> None:
        self.values = np.asarray(values)
        self.place = place or _here.get()

    def __repr__(self) -> str:
        return f"Tensor({self.values.tolist()}, {self.place!r})"

    shape = property(lambda self: self.values.shape)
    ndim = property(lambda self: self.values.ndim)
    dtype = property(lambda self: self.values.dtype)

    def to(self, place: str) -> Tensor:
        """The same numbers at another place."""
        return self if place == self.place else Tensor(self.values.copy(), place)

    def astype(self, dtype: Any) -> Tensor:
        """The same numbers in another dtype."""
        return Tensor(self.values.astype(dtype), self.place)

    def __getitem__(self, key: Any) -> Tensor:
        return computed(operator.getitem, self, key)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Tensor:
        return computed(getattr(ufunc, method), *inputs, **settings)


def computed(function: Callable[..., Any], *inputs: Any, **settings: Any) -> Tensor:
    """What a function of NumPy gives for tensors, at their place."""
    places = {tensor.place for tensor in tensors((inputs, settings))}
    if len(places) > 1:
        raise RuntimeError(f"tensors at {' and '.join(sorted(places))}")
    return Tensor(function(*bare(inputs), **bare(settings)), *places)


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(part)


def bare(tree: Any) -> Any:
    """The same with NumPy's arrays."""
    if isinstance(tree, dict):
        return {name: bare(part) for name, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(bare(part) for part in tree)
    return tree.values if isinstance(tree, Tensor) else tree


@contextmanager
def at(place: str) -> Iterator[None]:
    """New tensors land at this place."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


class Linear:
    """`x @ weight + bias`, for x [n, inputs]."""

    def __init__(self, inputs: int, outputs: int, dtype: str = "float32", seed: int = 0) -> None:
        drawn = np.random.default_rng(seed).normal(size=(inputs, outputs))
        self.weights = {"weight": Tensor(drawn.astype(dtype)), "bias": Tensor(np.zeros(outputs, dtype))}

    def __call__(self, x: Tensor) -> Tensor:
        return vjp(self.weights, x)[0]


def vjp(weights: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Back]:
    """The output of a Linear with these weights, and the way back: from its cotangent to those of weights and x."""

    def back(c: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        gradients = {"weight": computed(np.transpose, x) @ c, "bias": computed(np.sum, c, axis=0)}
        return gradients, c @ computed(np.transpose, weights["weight"])

    return x @ weights["weight"] + weights["bias"], back


def __getattr__(name: str) -> Any:
    """`abacus.sum`, `abacus.exp`, `abacus.float32`: NumPy's, for tensors."""
    if name.startswith("_"):
        raise AttributeError(name)
    found = getattr(np, name)
    return found if isinstance(found, type) else lambda *inputs, **settings: computed(found, *inputs, **settings)
