"""A program over one device of each of several processes: all compute the same steps together, over a global mesh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from anyaccel.errors import FrameworkError
from anyaccel.segment import NodeState, Segment
from anyaccel_jax.mesh_program import DeviceMesh, MeshOps, MeshProgram

Attempt = Callable[[str, Callable[[], Any]], Any]
"""Does what is called so, and says of which replica an error of JAX is."""


class ProcessMesh(DeviceMesh):
    """A mesh of one device of each process, of whose arrays each process sees its part.

    Args:
        devices: Devices of all processes, by rank.
        own: Device of this process.
        divides: See `DeviceMesh`.
        whole: Labels of nodes whose parameters and optimizer state each device has.
    """

    chooses_by_time = False
    computes_alone = True

    def __init__(self, devices: Sequence[Any], own: Any, *, divides: bool, whole: Collection[str] = ()) -> None:
        super().__init__(devices, divides=divides, whole=whole)
        self.own = own
        self._gather = jax.jit(lambda array: array, out_shardings=self.everywhere)

    def put(self, array: Any, sharding: NamedSharding) -> Any:
        """Return an array that all processes have alike, over the mesh: each keeps its part, and nothing is
        exchanged.
        """
        if _is_global(array):
            return array
        shape = np.shape(array)
        index = sharding.addressable_devices_indices_map(shape)[self.own]
        part = array if sharding.is_fully_replicated else array[index]
        return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(part, self.own)])

    def joined(self, array: Any) -> Any:
        """Return the rows of all processes, in sequence; this process passes its part."""
        join: Any = jax.make_array_from_process_local_data
        return join(self.rows, array)

    def _home(self, array: Any) -> Any:
        if not _is_global(array):
            return array
        whole = array if array.is_fully_replicated else self._gather(array)
        return whole.addressable_data(0)


def _is_global(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.is_fully_addressable


class ProcessMeshProgram(MeshProgram):
    """A segment over the devices of several processes, which pass it all rows of a step and make the same calls.

    Its results are whole in each process, once all have called: outputs, losses, models and states.

    Args:
        segment: The segment, on the device of this process.
        ops: Ops over the mesh.
        mesh: One device of each process.
        attempt: Function for calls that may fail because another process has ended.
    """

    def __init__(self, segment: Segment, ops: MeshOps, mesh: ProcessMesh, attempt: Attempt) -> None:
        self._attempt, self._own, self._joined = attempt, mesh.own, mesh.joined
        self._is_abandoned, self._takes_parts = False, False
        self._waits = segment.operations[0].device.kind == "cpu"  # there, what has begun fails when it is waited for
        super().__init__(segment, ops, mesh)

    def begin_parts(self, n_replicas: int) -> None:
        """Begin a step with the rows of `n_replicas` processes."""
        self._takes_parts = n_replicas > 1

    def _step_rows(self, inputs: Sequence[Any]) -> list[Any]:
        if not self._takes_parts:
            return super()._step_rows(inputs)
        return [None if x is None else self._joined(x) for x in inputs]

    def abandon(self) -> None:
        """Exchange nothing any more."""
        self._is_abandoned = True

    def sharded_bytes(self) -> int:
        """Return bytes of parameters and optimizer slots, or their parts, on the device of this process."""
        slots = {node: state.slots for node, state in self._state.states.items()}
        arrays = jax.tree.leaves((self._state.parameters, slots))
        return sum(shard.data.nbytes for array in arrays for shard in array.addressable_shards)

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        compute = partial(super().forward, inputs)
        result: tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]] = self._tried("evaluate a batch", compute)
        return result

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Compute losses and the pullback; outputs are None, because they are on several devices."""
        compute = partial(super().forward_pullback, inputs, scale)
        outputs, losses, pullback = self._attempt("compute a step", compute)
        return outputs, losses, lambda cotangents: self._attempt("compute gradients", partial(pullback, cotangents))

    def _training_outputs(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (None,) * len(outputs)

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """Run training steps; all processes run the same number."""
        before = self._state.snapshot(), self._buffers, self._draws
        compute = partial(super().train_steps, columns, orders, start, n_steps, batch_size, n_microbatches)
        try:
            return self._tried("compute steps", compute, lambda: self._state.parameters)
        except FrameworkError:  # arrays of steps that could not be computed
            state, self._buffers, self._draws = before
            self._state.restore(state)
            raise

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile steps; all processes call this together."""
        compute = partial(super().compile, columns, orders, batch_size, n_microbatches)
        self._tried("compile steps", compute, lambda: self._state.parameters)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        self._tried("compute a step", partial(super().optimizer_step, scale), lambda: self._state.parameters)

    def _tried(self, what: str, call: Callable[[], Any], made: Callable[[], Any] | None = None) -> Any:
        """Return the result of a call, or of `made`, computed where errors become visible."""
        wait: Any = jax.block_until_ready

        def compute() -> Any:
            result = call()
            if self._waits:
                wait(result if made is None else made())
            return result

        return self._attempt(what, compute)

    def sync_models(self) -> None:
        """Write the models; all processes call this together if parameters are sharded."""
        if not self._loses_values:
            self._attempt("gather parameters", super().sync_models)

    @property
    def _loses_values(self) -> bool:
        """Whether parts of parameters are in processes that are not asked for them any more."""
        return self._is_abandoned and self._mesh.divides

    def optimizer_states(self) -> dict[str, NodeState]:
        """Return the optimizer states; all processes call this together."""
        return self._lost_states() if self._loses_values else super().optimizer_states()

    def close(self) -> dict[str, NodeState]:
        """End the program; all processes call this together if parameters are sharded.

        If this one was abandoned before, they are NaN in its models.
        """
        if not self._loses_values:
            states: dict[str, NodeState] = self._attempt("gather parameters", super().close)
            return states
        for label, model in self._layout.models.items():
            parameters = {name: self._lost(array) for name, array in self._layout.parameters[label].items()}
            buffers = {name: array.addressable_data(0) for name, array in self._buffers[label].items()}
            self._mesh_ops.write_divided(model, parameters, buffers)
        self._columns.clear()
        return self._lost_states()

    def _lost_states(self) -> dict[str, NodeState]:
        return {node: NodeState(state.step) for node, state in self._state.all_states().items()}

    def _lost(self, array: Any) -> Any:
        """Return an array of NaN, or of zeros if the dtype has no NaN, on the device of this process."""
        value = np.nan if jax.numpy.issubdtype(array.dtype, jax.numpy.inexact) else 0
        return jax.device_put(np.full(array.shape, value, array.dtype), self._own)
