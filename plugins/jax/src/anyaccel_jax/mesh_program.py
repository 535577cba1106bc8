"""A program over several devices of a process: one compiled step with arrays sharded by `jax.sharding`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anyaccel.adapter import StepFunction, StepLoop
from anyaccel.device import Device
from anyaccel.segment import NodeState, Segment
from anyaccel_jax.ops import JaxOps
from anyaccel_jax.program import JaxProgram
from anyaccel_jax.step_loop import compile_loop, named_after

_AXIS = "replicas"


class DeviceMesh:
    """The placement of arrays on several devices: rows of a batch are sharded, the state is replicated or sharded.

    Args:
        devices: JAX devices of one process.
        divides: Whether parameters and optimizer state are sharded, each along its longest axis divisible by the number
            of devices; others are replicated.
        whole: Labels of nodes whose parameters and optimizer state are always replicated.
    """

    chooses_by_time: ClassVar[bool] = True
    """Whether what is faster may be found by the clock: not where others would choose otherwise."""
    computes_alone: ClassVar[bool] = False
    """Whether nothing but losses has gradients: no other segment takes outputs."""

    def __init__(self, devices: Sequence[Any], *, divides: bool, whole: Collection[str] = ()) -> None:
        self._mesh = Mesh(np.array(devices), (_AXIS,))
        self.devices, self.divides, self.whole = tuple(devices), divides, frozenset(whole)
        self.everywhere, self.rows = self._sharding(), self._sharding(_AXIS)
        self._divides_ragged: bool | None = None  # in the function that is traced; None until it has ragged rows

    def _sharding(self, *axes: str | None) -> NamedSharding:
        spec: Any = PartitionSpec
        return NamedSharding(self._mesh, spec(*axes))

    def of_state(self, shape: Sequence[int]) -> NamedSharding:
        """Return the sharding of a parameter or a slot."""
        n = len(self.devices)
        axes = [axis for axis, size in enumerate(shape) if size and size % n == 0] if self.divides else []
        if not axes:
            return self.everywhere
        chosen = max(axes, key=lambda axis: shape[axis])
        return self._sharding(*[None] * chosen, _AXIS)

    def placed_state(self, state: NodeState, *, divided: bool) -> NodeState:
        """Return the optimizer state of a node over the mesh."""
        where = self.of_state if divided else lambda _: self.everywhere
        return NodeState(state.step, jax.tree.map(lambda x: self.put(x, where(np.shape(x))), dict(state.slots)))

    def of_rows(self, n_rows: int) -> NamedSharding:
        """Return the sharding of the rows of a batch: each device has all of them if they cannot be split evenly."""
        return self.rows if n_rows and n_rows % len(self.devices) == 0 else self.everywhere

    def divide(self, rows: Any) -> Any:
        """Distribute the rows of a batch over the devices; within `dividing_rows` also of a ragged batch.

        XLA pads such a batch, and ignores the padding in everything that mixes rows, in losses and layers.
        """
        constrain: Any = jax.lax.with_sharding_constraint
        where = self.of_rows(rows.shape[0])
        if where is self.everywhere and isinstance(rows, jax.core.Tracer):
            if self._divides_ragged is None:
                raise _RaggedRows
            where = self.rows if self._divides_ragged else where
        return constrain(rows, where)

    def dividing_rows(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function to be compiled as a whole that shards any number of rows, unless XLA cannot do it."""

        @wraps(function)
        def traced(*args: Any) -> Any:
            with suppress(_RaggedRows):  # before the first model: nothing is traced twice where rows divide evenly
                return function(*args)
            self._divides_ragged = True
            try:
                self._divides_ragged = not _has_other_indices(jax.make_jaxpr(function)(*args))
                return function(*args)
            finally:
                self._divides_ragged = None

        return traced

    def put(self, array: Any, sharding: NamedSharding) -> Any:
        """Return an array over the mesh."""
        return jax.device_put(array, sharding)

    def home(self, tree: Any) -> Any:
        """Return the arrays of a tree, whole on the first device."""
        return jax.tree.map(self._home, tree)

    def _home(self, array: Any) -> Any:
        if not isinstance(array, jax.Array) or array.devices() == {self.devices[0]}:
            return array
        if array.is_fully_replicated:
            return next(shard.data for shard in array.addressable_shards if shard.device == self.devices[0])
        return jax.device_put(array, self.devices[0])


class _RaggedRows(Exception):
    """The rows of a function cannot be split equally over the devices."""


def _has_other_indices(jaxpr: Any) -> bool:
    """Return whether a gather or scatter uses indices that are not int32, as in the gradient of a sort.

    If rows are sharded unevenly, XLA pads all indices with an int32, and ends the process if they have another dtype.
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name.startswith(("gather", "scatter")) and equation.invars[1].aval.dtype != np.int32:
            return True
        inner = jax.tree.leaves(tuple(equation.params.values()))
        if any(_has_other_indices(value) for value in inner if hasattr(value, "eqns")):
            return True
    return False


class MeshOps(JaxOps):
    """Models and steps over a mesh. Parameters are whole while a model is applied to the rows of a device.

    Args:
        move_array: Function that puts an array on a device.
        mesh: The devices.
        whole: Models whose parameters are on all devices, even if those of others are sharded.
    """

    def __init__(
        self,
        move_array: Callable[[Any, Device], Any],
        mesh: DeviceMesh,
        whole: Collection[Any] = (),
        *,
        keeps_models: bool = True,
    ) -> None:
        super().__init__(move_array, keeps_models=keeps_models)
        self._mesh, self._whole = mesh, frozenset(map(id, whole))
        self.variant = mesh.devices, mesh.divides, mesh.whole
        self._placed: dict[int, tuple[Any, Any]] = {}

    def shareable(self) -> MeshOps:
        """Return the same without models."""
        return type(self)(self._move_array, self._mesh, keeps_models=False)  # nobody asks it for parameters

    def parameters(self, model: Any) -> Mapping[str, Any]:
        """Return the parameters over the mesh; arrays that two models share are shared."""
        divided = id(model) not in self._whole
        return {name: self._place(array, divided=divided) for name, array in super().parameters(model).items()}

    def optimizer_state(self, model: Any) -> NodeState | None:
        """Return the optimizer state of the model over the mesh."""
        state = super().optimizer_state(model)
        return None if state is None else self._mesh.placed_state(state, divided=id(model) not in self._whole)

    def buffers(self, model: Any) -> Mapping[str, Any]:
        """Return the buffers, on all devices."""
        return {name: self._place(array, divided=False) for name, array in super().buffers(model).items()}

    def _place(self, array: Any, *, divided: bool) -> Any:
        if id(array) not in self._placed:
            sharding = self._mesh.of_state(array.shape) if divided else self._mesh.everywhere
            self._placed[id(array)] = array, self._mesh.put(array, sharding)
        return self._placed[id(array)][1]

    def forget_placed(self) -> None:
        """Release the placed arrays of models."""
        self._placed.clear()

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Store the values in the model, on the first device."""
        super().write(model, self._mesh.home(dict(parameters)), self._mesh.home(dict(buffers)))

    def write_divided(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Let a model hold the arrays over the mesh, whether or not they are computed yet."""
        self.model(model).write(parameters, buffers)

    def apply(self, model: Any, parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Apply a model with whole parameters."""
        constrain: Any = jax.lax.with_sharding_constraint
        whole = {name: constrain(array, self._mesh.everywhere) for name, array in parameters.items()}
        return super().apply(model, whole if self._mesh.divides else parameters, *args, **kwargs)

    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """Gather rows, with a part of them on each device."""
        return self._mesh.divide(super().gather_batch(column, order, start, size))

    def jit(self, function: Callable[..., Any], donated: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Compile a function with sharded rows."""
        return super().jit(self._mesh.dividing_rows(function), donated)

    def compile_value_and_pullback(
        self, function: Callable[..., Any]
    ) -> Callable[[Any, Any], tuple[Any, Any, Callable[[Any], Any]]]:
        """Compile a function with its pullback. If rows do not divide evenly and only losses have gradients, compute
        these immediately.

        A value that one compiled function passes to another is whole on each device if it cannot be split evenly.
        """
        apart = super().compile_value_and_pullback(function)
        if not self._mesh.computes_alone:
            return apart

        def gradients(primals: Any, rest: Any) -> tuple[Any, dict[str, Any]]:
            divided = {**rest, "inputs": jax.tree.map(self._mesh.divide, rest["inputs"])}
            _, results, pull = self.value_and_pullback(function, primals, divided)
            seeds = dict.fromkeys(results["seeds"], 0)
            return pull(results["seeds"]), {**results, "seeds": seeds, "outputs": {}}

        named_after(function, gradients, "gradients")
        at_once = self.jit(gradients)

        def run(primals: Any, rest: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
            if all(self._mesh.of_rows(x.shape[0]) is self._mesh.rows for x in rest["inputs"].values()):
                return apart(primals, rest)
            pulled, results = at_once(primals, rest)
            return {}, results, lambda _: pulled

        return run

    def move(self, array: Any, device: Device) -> Any:
        """Move an array to the mesh."""
        if isinstance(array, jax.core.Tracer) or len(array.devices()) > 1:
            return array
        return self._mesh.put(array, self._mesh.of_state(array.shape))

    def compile_steps(self, body: StepFunction, *, quick: bool = False) -> StepLoop:
        """Compile steps; sharded arrays stay sharded, parameter by parameter."""
        body = _DividedStep(body, self._mesh) if self._mesh.divides else body
        mesh = self._mesh
        return compile_loop(body, self.jit, donates=self.donates, put=mesh.put, times_ways=mesh.chooses_by_time)


class DonatingMeshOps(MeshOps):
    """Mesh ops that donate the state, like `DonatingOps`."""

    donates = True


class _DividedStep(StepFunction):
    """A step whose state is sharded before and after it; it is not flattened, which would gather it."""

    def __init__(self, body: StepFunction, mesh: DeviceMesh) -> None:
        self.batch_size, self.__name__ = body.batch_size, body.__name__
        self._body, self._mesh = body, mesh

    def __call__(self, state: Any, rest: Any, scalars: Any) -> tuple[Any, Any]:
        after, losses = self._body(state, rest, scalars)
        kept = {
            name: {
                owner: jax.tree.map(self._everywhere if owner in self._mesh.whole else self._divided, arrays)
                for owner, arrays in after[name].items()
            }
            for name in ("parameters", "slots")
        }
        return {**after, **kept}, losses

    def _divided(self, array: Any) -> Any:
        constrain: Any = jax.lax.with_sharding_constraint
        return constrain(array, self._mesh.of_state(array.shape))

    def _everywhere(self, array: Any) -> Any:
        constrain: Any = jax.lax.with_sharding_constraint
        return constrain(array, self._mesh.everywhere)

    def flatten(self, state: Any) -> tuple[Any, Any, Any]:
        """Return the state unchanged."""
        return state, self, lambda after: after


class MeshProgram(JaxProgram):
    """A segment over several devices, with the numbers of one: the framework splits each step and adds gradients.

    Inputs arrive on the first device, and outputs, losses and states are returned there. With sharded parameters, the
    user's models hold them sharded after each step, and whole on the first device after `sync_models` and `close`.

    Args:
        segment: The segment, on the first device.
        ops: Ops over the mesh.
        mesh: The devices.
    """

    def __init__(self, segment: Segment, ops: MeshOps, mesh: DeviceMesh) -> None:
        self._mesh, self._mesh_ops = mesh, ops
        self._columns: dict[int, tuple[Any, Any]] = {}
        states = {
            label: mesh.placed_state(state, divided=label not in mesh.whole) for label, state in segment.states.items()
        }
        super().__init__(replace(segment, states=states), ops)
        struct: Any = jax.ShapeDtypeStruct
        self._layout.parameters = {
            label: {name: struct(array.shape, array.dtype) for name, array in arrays.items()}
            for label, arrays in self._layout.parameters.items()
        }
        ops.forget_placed()
        self._release()

    def _release(self) -> None:
        """Let the models hold the sharded arrays, so that no whole ones are kept."""
        if self._mesh.divides:
            for label, model in self._layout.models.items():
                self._mesh_ops.write_divided(model, self._state.parameters[label], self._buffers[label])

    def _rows(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the rows of a batch, sharded over the devices."""
        return [None if x is None else self._mesh.put(x, self._mesh.of_rows(int(x.shape[0]))) for x in inputs]

    def _step_rows(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the rows of a training step, whose form may differ from those of an evaluation."""
        return self._rows(inputs)

    def _everywhere(self, columns: Sequence[Any]) -> list[Any]:
        """Return columns on all devices; those of the last call are not copied again."""
        before, self._columns = self._columns, {}
        return [None if x is None else self._known_or_copied(x, before) for x in columns]

    def _known_or_copied(self, array: Any, before: Mapping[int, tuple[Any, Any]]) -> Any:
        copied = before.get(id(array))
        if copied is None or copied[0]() is not array:
            copied = weakref.ref(array), self._copied_everywhere(array)
        self._columns[id(array)] = copied
        return copied[1]

    def _copied_everywhere(self, array: Any) -> Any:
        return self._mesh.put(array, self._mesh.everywhere)

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        outputs, losses = super().forward(self._rows(inputs))
        return self._at_home(outputs), self._at_home(losses)

    def _at_home(self, values: Any) -> Any:
        return self._mesh.home(values)

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        weights: dict[str, Any] = self._at_home(super().loss_weights(self._step_rows(inputs)))
        return weights

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        factors = None if scale is None else {label: self._on_mesh(factor) for label, factor in scale.items()}
        outputs, losses, pullback = super().forward_pullback(self._step_rows(inputs), factors)
        return self._training_outputs(outputs), self._at_home(losses), pullback

    def _training_outputs(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs of a training step in the form for the caller."""
        at_home: tuple[Any, ...] = self._at_home(outputs)
        return at_home

    def _on_mesh(self, factor: Any) -> Any:
        return self._copied_everywhere(factor) if isinstance(factor, jax.Array) else factor

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        columns_on_mesh, orders_on_mesh = self._split(columns, orders)
        try:
            losses = super().train_steps(columns_on_mesh, orders_on_mesh, start, n_steps, batch_size, n_microbatches)
        finally:
            self._release()
        return self._at_home(losses)

    def _split(self, columns: Sequence[Any], orders: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        every = self._everywhere([*columns, *orders])
        return every[: len(columns)], every[len(columns) :]

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        super().compile(*self._split(columns, orders), batch_size, n_microbatches)
        self._release()

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        stats: dict[str, tuple[Any, Any]] = self._at_home(super().grad_stats())
        return stats

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        super().optimizer_step(scale)
        self._release()

    def optimizer_states(self) -> dict[str, NodeState]:
        return self._whole_states(super().optimizer_states())

    def close(self) -> dict[str, NodeState]:
        states = self._whole_states(super().close())
        self._columns.clear()
        return states

    def _whole_states(self, states: Mapping[str, NodeState]) -> dict[str, NodeState]:
        return {node: NodeState(state.step, self._at_home(dict(state.slots))) for node, state in states.items()}
