"""The whole backend: placement, arrays of the host, and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel import Compute, Device, Exchange, Program
from anyaccel.errors import MoveError, ShapeError, StateError
from anyaccel.segment import Segment, TensorSpec
from anyaccel_mlx.arrays import arrays_in, dtype_on, name_of
from anyaccel_mlx.placement import MlxPlacement


class MlxBackend(MlxPlacement, Exchange, Compute):
    """MLX with all that a graph needs. Making one does not import MLX."""

    parameter_groups = True
    weighs_losses = True

    # -- exchange --------------------------------------------------------------------------------------------------

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """A copy; the dtype is named, as MLX makes float32 of float64 without a word."""
        import mlx.core as mx

        dtype = dtype_on(device, array.dtype.name)
        return self.put(mx.array(np.asarray(array, array.dtype.newbyteorder("="), order="C"), dtype), device)

    def to_host(self, tensor: Any) -> np.ndarray:
        """A view that cannot be written to: the memory is MLX's own."""
        try:
            view = np.asarray(tensor)
        except (ValueError, RuntimeError) as error:
            raise MoveError(f"NumPy lacks {name_of(tensor)}", available=str(error), hint="convert it first") from error
        view.flags.writeable = False
        return view

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """A copy: MLX takes over no memory of the CPU, and its own import narrows float64 without a word."""
        try:
            return self.from_host(foreign if isinstance(foreign, np.ndarray) else np.from_dlpack(foreign), device)
        except (AttributeError, TypeError, BufferError, RuntimeError) as error:
            raise MoveError(f"MLX cannot take over a {type(foreign).__name__}", available=str(error)) from error

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """A slice, or a gather."""
        device = self.device_of(column) or self.default()
        with self.scope(device):
            return self.put(column[start:stop] if order is None else column[order[start:stop]], device)

    # -- compute ---------------------------------------------------------------------------------------------------

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """Shapes come from a lazy graph that is never evaluated."""
        import mlx.core as mx

        from anyaccel_mlx.models import SequentialMLP, holding, outputs_of

        if isinstance(model, SequentialMLP):
            model.build([spec.shape for spec in inputs], seed)
        for batch in (2, 3):  # an output that does not follow the batch is none
            zeros = [mx.zeros((batch, *one.shape), dtype_on(Device("cpu"), one.dtype)) for one in inputs]
            try:
                with holding(model, train=False):
                    outputs = outputs_of(model(*zeros))
            except (ValueError, TypeError) as error:
                raise ShapeError(
                    f"the model does not take {', '.join(map(str, inputs))}", available=str(error)
                ) from error
            if any(output.shape[:1] != (batch,) for output in outputs):
                raise ShapeError(f"of {batch} samples the model makes {[list(output.shape) for output in outputs]}")
        return tuple(TensorSpec(tuple(output.shape[1:]), name_of(output)) for output in outputs)

    def dtype_of(self, model: Any) -> str | None:
        """That of the spec of a SequentialMLP, or of the first floating array."""
        from anyaccel_mlx.models import SequentialMLP

        dtypes = [model.spec.dtype] if isinstance(model, SequentialMLP) else map(name_of, arrays_in(model))
        return next((name for name in dtypes if "float" in name), None)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Those that are not frozen; frozen ones are buffers."""
        from anyaccel_mlx.models import values

        return {name: TensorSpec(tuple(array.shape), name_of(array)) for name, array in values(model)[0].items()}

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Copies."""
        from anyaccel_mlx.models import values

        kinds = zip(("parameters", "buffers"), values(model), strict=True)
        return {f"{kind}/{name}": self.to_host(a).copy() for kind, arrays in kinds for name, a in arrays.items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """All of it, or none if anything does not fit."""
        from anyaccel_mlx.models import update

        wanted, given = ({n: f"{a.dtype}{list(a.shape)}" for n, a in s.items()} for s in (self.state(model), state))
        if wanted != given:
            names = sorted({name for name, _ in wanted.items() ^ given.items()})
            asked, there = (", ".join(f"{n} {s.get(n, 'missing')}" for n in names) for s in (given, wanted))
            raise StateError(f"the state does not fit: {asked}", available=f"in the model: {there}")
        device = self.device_of(model) or self.default()
        update(model, {name.partition("/")[2]: self.from_host(array, device) for name, array in state.items()})

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """`x[0] = 1` makes new memory for one array object, and `mx.compile` hands objects of its own to the model."""
        return False

    def batch_coupling(self, model: Any) -> str:
        """BatchNorm, wherever it is."""
        import mlx.nn as nn

        return "BatchNorm" if any(isinstance(one, nn.BatchNorm) for one in model.modules()) else ""

    def build(self, segment: Segment) -> Program:
        """The adapter's program, compiled by MLX."""
        from anyaccel_mlx.ops import MlxProgram

        return MlxProgram(segment, self)

    def models(self) -> Mapping[str, type]:
        """SequentialMLP."""
        from anyaccel_mlx.models import SequentialMLP

        return {"SequentialMLP": SequentialMLP}
