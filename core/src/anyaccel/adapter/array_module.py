"""Module: a model in plain NumPy that implements its own pullback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter.array_ops import VjpResult
from anyaccel.device import Device
from anyaccel.segment import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]
Values = Mapping[str, Array]


class Module(ABC):
    """Base class of models in NumPy: a function of values and inputs, with its pullback.

    `parameters` are trained. `buffers`, which have other names, change while training, but not by gradients. `dtype` is
    the required dtype of floating inputs; None for any. Derive from this class, fill `parameters` in `__init__` (or in
    `build`, if shapes depend on the data), and write `apply`:

        class Scale(Module):
            def __init__(self):
                super().__init__()
                self.parameters["factor"] = np.ones(1, "float32")

            def apply(self, values, inputs, *, train, key):
                (x,), factor = inputs, values["factor"]

                def pullback(cotangents):
                    (c,) = cotangents
                    return {"factor": np.sum(c * x).reshape(1)}, (c * factor,)

                return VjpResult((x * factor,), pullback)
    """

    parameters: MutableMapping[str, Array]
    buffers: MutableMapping[str, Array]
    dtype: str | None = None

    input_hint = "change its inputs, or the module"
    """What to do where it refuses `example`."""

    computes_on_host = False
    """Whether `apply` takes and gives plain arrays, wherever the module is."""

    home: Device | None = None
    """Where it was placed; the device of a module without values, such as an estimator."""

    def __init__(self) -> None:
        self.parameters = {}
        self.buffers = {}

    @property
    def is_built(self) -> bool:
        """Whether it has all its parameters."""
        return True

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Create the parameters for inputs of these specs, random ones from `seed`. The default creates none.

        Raises:
            ShapeError: it does not accept these inputs.
        """

    @abstractmethod
    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Return the outputs, the pullback, and the new buffers (None if none changed).

        The pullback takes a tuple with a cotangent for each output and returns gradients by parameter name and a
        cotangent for each input, None for one that has no gradient. Do not write to any argument.

        Args:
            values: Parameters and buffers by name, to use instead of the module's own.
            inputs: Arrays [batch, ...].
            train: Training mode; otherwise nothing is random or depends on other rows of the batch.
            key: 64 random bits, new in every step.
        """

    def example(self, inputs: Sequence[TensorSpec]) -> tuple[Array, ...]:
        """Return a batch of two samples, to find the shapes of outputs; the default is zeros."""
        return tuple(np.zeros((2, *spec.shape), spec.dtype) for spec in inputs)

    def __call__(self, *inputs: Array) -> Array | tuple[Array, ...]:
        """Compute the outputs in evaluation mode; a tuple if there are several."""
        outputs = self.apply({**self.parameters, **self.buffers}, inputs, train=False, key=0).outputs
        return outputs[0] if len(outputs) == 1 else outputs
