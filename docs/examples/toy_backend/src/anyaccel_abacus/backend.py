"""The whole backend: placement, arrays of the host, and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel import Compute, Device, Exchange, Program
from anyaccel.adapter import ArrayProgram
from anyaccel.errors import MoveError, ShapeError, StateError
from anyaccel.segment import Segment, TensorSpec
from anyaccel_abacus.placement import AbacusPlacement


class AbacusBackend(AbacusPlacement, Exchange, Compute):
    """abacus with all that a graph needs."""

    # -- exchange --------------------------------------------------------------------------------------------------

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """A copy in the machine's own byte order."""
        import abacus

        if array.dtype.kind not in "biufc":
            raise MoveError(f"abacus has no dtype for {array.dtype}")
        copy = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        return abacus.Tensor(copy, self.device_string(device))

    def to_host(self, tensor: Any) -> np.ndarray:
        """A copy."""
        return np.array(tensor.values)

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """A copy: abacus never shares memory."""
        try:
            return self.from_host(foreign if isinstance(foreign, np.ndarray) else np.from_dlpack(foreign), device)
        except (AttributeError, TypeError, BufferError, RuntimeError) as error:
            raise MoveError(f"abacus cannot take over a {type(foreign).__name__}: {error}") from error

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """A slice, or a gather."""
        return column[start:stop] if order is None else column[order[start:stop]]

    # -- compute ---------------------------------------------------------------------------------------------------

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """A Linear is built from the start, so there is nothing to draw from the seed."""
        weight = model.weights["weight"]
        if [spec.shape for spec in inputs] != [weight.shape[:1]]:
            raise ShapeError(
                f"Linear does not take {', '.join(map(str, inputs))}",
                available=f"it takes one input with {weight.shape[0]} features",
            )
        return (TensorSpec(weight.shape[1:], weight.dtype.name),)

    def dtype_of(self, model: Any) -> str | None:
        """That of the weights."""
        return str(model.weights["weight"].dtype.name)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """The weights."""
        return {name: TensorSpec(tensor.shape, tensor.dtype.name) for name, tensor in model.weights.items()}

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Copies of the weights."""
        return {f"parameters/{name}": self.to_host(tensor) for name, tensor in model.weights.items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """All of it, or none if anything does not fit."""
        there = self.state(model)
        wanted = {name: (array.shape, array.dtype) for name, array in there.items()}
        given = {name: (array.shape, array.dtype) for name, array in state.items()}
        if wanted != given:
            raise StateError(f"the state does not fit: it has {given}", available=f"{wanted} in the model")
        device = self.device_of(model)
        assert device is not None
        model.weights = {name.partition("/")[2]: self.from_host(array, device) for name, array in state.items()}

    def build(self, segment: Segment) -> Program:
        """The adapter's program."""
        from anyaccel_abacus.ops import AbacusOps  # imports abacus

        return ArrayProgram(segment, AbacusOps(self))
