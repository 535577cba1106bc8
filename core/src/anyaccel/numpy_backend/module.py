"""Module: a model in plain NumPy that knows its own pullback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np

from anyaccel.adapter import VjpResult
from anyaccel.device import Device
from anyaccel.errors import ShapeError
from anyaccel.numpy_backend.sim_array import Array, made_like
from anyaccel.segment import TensorSpec

Values = Mapping[str, Array]


class Module(ABC):
    """A model as a function of its values, with the pullback written out.

    `parameters` are trained; `buffers`, of other names, change while training, but not by gradients. `dtype` is that
    of the floating inputs it wants, None where it has no wish. Derive from it, fill `parameters` in `__init__` (or in
    `build`, if shapes come from the data), and write `apply`:

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

    home: Device | None = None
    """Where it was placed; what tells for a module without values, such as an estimator."""

    def __init__(self) -> None:
        self.parameters = {}
        self.buffers = {}

    @property
    def is_built(self) -> bool:
        """Whether all parameters are there."""
        return True

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Make the parameters for inputs of these specifications, weights from `seed`. By default there are none.

        Raises:
            ShapeError: it does not take such inputs.
        """

    @abstractmethod
    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Outputs, the pullback, and the buffers afterwards (None where none changed).

        The pullback takes a tuple with one cotangent for each output and gives gradients by parameter name and one
        cotangent for each input, None for one that has no gradient. Nothing that is given may be written to.

        Args:
            values: parameters and buffers by name, to be used instead of the module's own.
            inputs: arrays with the batch as first axis.
            train: whether it trains; random and batch-dependent parts behave accordingly.
            key: 64 bits for what is random; other ones in every step.
        """

    def __call__(self, *inputs: Array) -> Array | tuple[Array, ...]:
        """Outputs in evaluation mode; a tuple if there are several."""
        outputs = self.apply({**self.parameters, **self.buffers}, inputs, train=False, key=0).outputs
        return outputs[0] if len(outputs) == 1 else outputs


def only(what: str, inputs: Sequence[Array]) -> Array:
    """The one input of a layer.

    Raises:
        ShapeError: there are several.
    """
    if len(inputs) != 1:
        raise ShapeError(f"{what} takes one input and was given {len(inputs)}", hint="join them with a ConcatNode")
    return inputs[0]


def traced(module: Module, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """What a built module gives for two samples of zeros.

    Raises:
        ShapeError: its outputs are not arrays with the batch as first axis.
        Exception: whatever the module raises.
    """
    zeros = tuple(_zeros(module, spec) for spec in inputs)
    outputs = module.apply({**module.parameters, **module.buffers}, zeros, train=False, key=0).outputs
    for output in outputs:
        if not isinstance(output, (np.ndarray, np.generic)) or output.shape[:1] != (2,):
            shape = list(output.shape) if hasattr(output, "shape") else type(output).__name__
            raise ShapeError(
                f"{type(module).__name__} gave {shape} for a batch of 2 samples",
                hint="let every output be an array with the batch as its first axis",
            )
    return tuple(TensorSpec(tuple(output.shape[1:]), output.dtype.name) for output in outputs)


def _zeros(module: Module, spec: TensorSpec) -> Array:
    zeros = np.zeros((2, *spec.shape), spec.dtype)
    near = next(iter(module.parameters.values()), None)
    return zeros if near is None else made_like(zeros, near)
