"""Custom loops of JAX: states and batches become global arrays over all processes; steps are unchanged."""

from __future__ import annotations

import hashlib
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial, update_wrapper
from itertools import islice
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anyaccel.arguments import shown
from anyaccel.containers import leaves, map_leaves
from anyaccel.errors import ConfigError, DataError, FrameworkError, StateError
from anyaccel.printable import printable
from anyaccel.registry import registry
from anyaccel.user_level import user_level
from anyaccel_distributed import Launched
from anyaccel_distributed.own_loop import Loop, LoopLoader, OwnLoops, Share
from anyaccel_distributed.own_loop.gathering import Part, merged
from anyaccel_distributed.own_loop.loader import rows_of
from anyaccel_distributed.own_loop.loop_folder import check_counts, check_same
from anyaccel_jax import runtime_config
from anyaccel_jax.array_trees import comes_from, is_keras, is_nnx, is_own_model
from anyaccel_jax.error_translation import translate_errors
from anyaccel_jax.host_transfer import copy_on_host
from anyaccel_jax.loop_gradients import LossGradients, checked_micro

_DATA = "data"
_DELETED = ("has been deleted", "deleted or donated")
_LOST = ("Gloo", "NCCL", "ollective", "UNAVAILABLE", "Connection closed by peer")
_NUMBERS = (bool, int, float, complex)


class JaxLoops(OwnLoops):
    """The custom loops of JAX."""

    @property
    def loop(self) -> type[Loop]:
        return JaxLoop


class JaxLoop(Loop):
    """A loop of JAX. In several processes states and batches are global arrays over one mesh of their devices.

    ```python
    loop = aa.Loop(framework="jax")
    state, loader = loop.prepare(state, loader)
    gradients = loop.value_and_grad(loss)


    @loop.compile
    def step(state, x, y):
        value, grads = gradients(state.params, x, y)
        return state.apply_gradients(grads=grads), value


    for x, y in loader:
        state, value = step(state, x, y)
    ```

    A step computes over all rows of a global array: its mean, its gradients, its batch statistics. A batch whose rows
    cannot be split evenly over the devices is replicated on each, which gives the same numbers. In one process on a
    CPU, batches are the loader's NumPy arrays.

    Attributes:
        mesh: Mesh of one device of each process, with the axis `"data"`; or your own mesh in
            `options={"mesh": mesh}`.
        state: Newest states of the prepared objects, several in a tuple; after `load`, those of the checkpoint. If
            `compile` did not create your step, set it yourself: `loop.state = state`.
    """

    framework: ClassVar[str] = "jax"
    attribute_hints: ClassVar[Mapping[str, str]] = {
        "backward": "compute gradients with loop.value_and_grad(loss)(params, x, y), inside the step",
        "autocast": "precision= casts inside loop.value_and_grad(loss)",
        "accumulate sync_gradients no_sync no_backward_sync trigger_sync_in_backward": (
            "write loop.value_and_grad(loss, accumulate=4)"
        ),
        "clip_grad_norm_ clip_gradients clip_grad_value_ unscale_gradients": "clip in the optimizer: optax.chain("
        "optax.clip_by_global_norm(1.0), ...); gradients are already averaged over all processes",
        "unwrap unwrap_model save_model get_state_dict": "use the model itself: it is not wrapped",
        **Loop.attribute_hints,  # last: the first hint for a name is the one
    }

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.precision == "fp16-mixed":
            raise ConfigError(
                "Loop: precision='fp16-mixed' needs a loss scale, which JAX loops do not have",
                available="'float32', 'bf16-mixed'",
                hint="write precision='bf16-mixed'",
            )
        if self.precision not in (None, "float32", "bf16-mixed"):
            raise ConfigError(
                f"Loop: precision={self.precision!r} changes the dtype of a model's parameters",
                available="'float32', 'bf16-mixed'",
                hint="write precision='bf16-mixed', or cast the parameters before prepare()",
            )
        if self.sync_batchnorm is False and self.num_processes > 1:
            raise ConfigError(
                "Loop: sync_batchnorm=False is not possible: a step of JAX sees the rows of all processes",
                hint="leave sync_batchnorm out",
            )
        unknown = self.options.keys() - {"mesh"}
        if unknown or not isinstance(self.options.get("mesh"), (Mesh, type(None))):
            raise ConfigError(
                f"Loop: options={shown(self.options)} are not options of JAX",
                available="'mesh', a jax.sharding.Mesh",
                hint="write options={'mesh': mesh}",
            )
        backend: Any = registry().find("jax", self.device.kind)
        device = backend.jax_device(self.device)
        if self.num_processes == 1:
            devices = [device]
        else:
            from anyaccel_jax.replica_group import corresponding_devices

            devices = corresponding_devices(device, self.num_processes)
        self._placing = _Placing(device, self.options.get("mesh"), devices, divides=self.sharding == "full")
        self.mesh = self._placing.mesh
        group = self._processes.group if self.num_processes > 1 else None
        self._states = _States(self._iterations, self._prepared_loaders, self._count_step, group)

    def _count_step(self) -> None:
        self.step += 1

    def _joined_group(self, place: Launched) -> Any:
        if runtime_config.is_started() and not jax.distributed.is_initialized():
            raise FrameworkError(
                "JAX was started before the Loop could join the processes of the launcher",
                cause="devices of JAX are fixed when it starts, for example with the first array or model",
                hint="create the Loop first, at the top of the script: loop = aa.Loop(framework='jax')",
            )
        group = super()._joined_group(place)
        group.separate_messages()
        return group

    def _meet(self, what: str) -> None:
        if self.num_processes > 1:
            with self._processes.group.meeting(what):
                self._processes.gather_plain(None, what.replace("call", "in"))

    # -- prepare ---------------------------------------------------------------------------------------------------

    def _is_loader(self, candidate: Any) -> bool:
        return super()._is_loader(candidate) and not is_nnx(candidate) and jax.tree_util.all_leaves([candidate])

    def _is_container(self, candidate: Any) -> bool:
        """Return whether a container has a loader; other lists, tuples and dicts are states."""
        if not super()._is_container(candidate):
            return False
        items = candidate.values() if isinstance(candidate, dict) else candidate
        return any(self._is_loader(item) or self._is_container(item) for item in items)

    def _make_loader(self, loader: Any, *settings: Any) -> LoopLoader:
        return JaxLoader(loader, *settings, placing=self._placing, together=self.accumulation_steps)

    def _prepare(self, objects: Sequence[Any], frozen: bool) -> list[Any]:
        for value in objects:
            is_model = is_keras(value) or is_own_model(value)
            if is_model or not any(
                isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(_contents(value))
            ):
                raise DataError(
                    f"prepare() cannot prepare a {type(value).__name__}",
                    available="pytrees of arrays, NNX and Equinox modules, states of Flax and Optax, and loaders",
                    hint="write state, loader = loop.prepare(state, loader)",
                )
            if self._states.holds(value):
                raise ConfigError(
                    f"this {type(value).__name__} is prepared already",
                    hint="prepare each state only once, and use the result of prepare(); copy it for a second one: "
                    "jax.tree.map(jnp.copy, state)",
                )
        if self.num_processes > 1:
            digests = {
                f"{number}/{name}": _digest(leaf)
                for number, value in enumerate(objects)
                for name, leaf in _named(value).items()
                if not _is_global(leaf)
            }
            difference = self._processes.first_difference(digests, "in loop.prepare()")
            if difference is not None:
                number, _, path = difference[0].partition("/")
                raise DataError(
                    f"the processes have different states: {path!r} of process {difference[1]} differs from process 0",
                    cause=f"one {type(objects[int(number)]).__name__}, created in the same way in all processes",
                    hint="create it from the same key in all processes: jax.random.key(0)",
                )
        placed = [self._placed(value) for value in objects]
        if not frozen:
            self._states.prepared += [_Prepared(value) for value in placed]
            self._undo += [self._states.prepared.pop] * len(placed)
        return placed

    def _placed(self, value: Any) -> Any:
        placing = self._placing
        keeps_numbers = placing.is_plain or comes_from(value, "equinox")

        def placed(leaf: Any) -> Any:
            if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype != object:
                leaf = np.asarray(leaf)
                leaf = copy_on_host(leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype)))
            elif isinstance(leaf, _NUMBERS) and not keeps_numbers:
                return placing.whole(leaf)  # so that all calls of a step receive the same kind of value
            elif not isinstance(leaf, jax.Array) or _is_global(leaf) or len(leaf.sharding.device_set) > 1:
                return leaf
            return placing.put(leaf, placing.divided(leaf))

        with translate_errors("a state of the loop"):
            return _mapped(value, placed)

    # -- steps -----------------------------------------------------------------------------------------------------

    def compile(self, step: Callable[..., Any] | None = None, **settings: Any) -> Any:
        """Return a compiled step like `jax.jit(step)`, with the memory of its input states donated.

        ```python
        @loop.compile
        def step(state, x, y): ...


        state, value = step(state, x, y)
        ```

        Each call is an update: it increments `loop.step`, and `save` writes its new states. Steps over NNX modules are
        compiled by `nnx.jit`, steps over Equinox modules by `equinox.filter_jit`.

        Args:
            step: Function that takes prepared states by position, and returns new ones in their order, first or alone.
            settings: Settings of `jax.jit`.

        Raises:
            ConfigError: The step receives no prepared state, or returns no new one; or the loop has a precision, and
                the step does not use `value_and_grad`.
            StateError: The step receives a state that an earlier step has donated.
        """
        return (
            partial(self.compile, **settings)
            if step is None
            else _CompiledStep(step, settings, self._states, self._placing, self.precision)
        )

    def value_and_grad(
        self, loss: Callable[..., Any], *, accumulate: int | None = None, has_aux: bool = False
    ) -> LossGradients:
        """Return a function like `jax.value_and_grad(loss)` for a mean over all rows, including with micro-batches.

        ```python
        value, grads = loop.value_and_grad(loss, accumulate=4)(params, x, y)
        ```

        Padding rows do not count.

        Args:
            loss: Function of the model or parameters and a batch. It returns a mean over the batch's rows, a value for
                each row, or a sum and its count, an integer, such as of tokens. Sums of all micro-batches and processes
                are added and divided by the total of the counts.
            accumulate: Number of micro-batches that a batch is split into, computed in sequence; by default that of the
                loop, whose loaders join as many batches.
            has_aux: Whether the loss returns a pair of this result and any other value, which is returned too.

        Returns:
            A function of the model, the batch, and `mask=`, which selects the rows that count.
        """
        return LossGradients(
            loss,
            n_micro=checked_micro(self.accumulation_steps if accumulate is None else accumulate, has_aux),
            n_shards=self._placing.n_shards,
            dtype=jnp.bfloat16 if self.precision == "bf16-mixed" else None,
            has_aux=has_aux,
            traced=self._states.count_loss,
        )

    def key(self, step: Any = None) -> Any:
        """Return the random key of a step, which depends on the loop's seed, but not on the number of processes.

        Resuming does not change the keys.

        Args:
            step: Number of the step; by default the number of finished updates.
        """
        step = self.step if step is None else step
        if isinstance(step, jax.core.Tracer):
            return jax.random.fold_in(jax.random.key(self.seed or 0), step)
        return self._key_of(step)

    @cached_property
    def _key_of(self) -> Callable[[Any], Any]:
        seed = self.seed or 0
        make = lambda step: jax.random.fold_in(jax.random.key(seed), step)  # noqa: E731
        return jax.jit(make, out_shardings=self._placing.everywhere)

    @property
    def is_update(self) -> bool:
        return True  # a step is an update, regardless of the batches that were joined for it

    # -- values ----------------------------------------------------------------------------------------------------

    def _part(self, value: Any) -> Part:
        rows_share, share = self._iterations.share, self._iterations.training_share
        self._gathers = share is None and not any(_is_global(leaf) for leaf in leaves(value, registry().owners))
        on_host, rows = super()._part(value)
        padding = rows_share.padding if isinstance(rows_share, _JaxShare) else None
        if padding is None or rows_share is None:
            return on_host, rows
        n_rows, n_padded = rows_share.rows, len(padding.mask)

        def without(leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray) or not leaf.ndim or len(leaf) != n_padded:
                return leaf
            if share is None and n_padded != n_rows:
                raise DataError(
                    f"gather() received an array of {n_padded} rows after the loop; its last batch also has {n_padded} "
                    f"rows, but only {n_rows} of them are real",
                    hint="gather results of a batch inside the loop over its loader, and other values before it",
                )
            return leaf[:n_rows]

        padding.is_read = True
        return map_leaves(on_host, without, registry().owners), rows

    def _parts_of_all(self, parts: list[Part]) -> list[Part]:
        """Return the batches' results: with prepared loaders, each process has the values of all rows."""
        return super()._parts_of_all(parts) if self._gathers else parts

    def reduce(self, value: Any, how: str = "mean", *, count: Any = None) -> Any:
        """Reduce values like `Loop.reduce`; results of global arrays include all processes, and are not awaited."""
        every = leaves(value, registry().owners)
        if how in ("mean", "sum", "max", "min") and every and all(_is_global(leaf) for leaf in every):
            return value if count is None else jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), value)
        return super().reduce(value, how, count=count)

    def _to_numpy(self, tensor: Any) -> np.ndarray | None:
        if not isinstance(tensor, jax.Array):
            return None
        if jnp.issubdtype(tensor.dtype, jax.dtypes.prng_key):
            tensor = jax.random.key_data(tensor)
        return np.asarray(
            self._placing.whole(tensor) if _is_global(tensor) and not tensor.is_fully_replicated else tensor
        )

    def _concatenated(self, rows: Sequence[np.ndarray]) -> Any:
        return np.concatenate(rows) if rows[0].ndim else rows[0]

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The newest states of the prepared objects."""
        values = [prepared.value for prepared in self._states.prepared]
        if not values:
            raise ConfigError(
                "the loop has no state, because none was prepared",
                hint="write state, loader = loop.prepare(state, loader)",
            )
        return values[0] if len(values) == 1 else tuple(values)

    @state.setter
    def state(self, value: Any) -> None:
        prepared = self._states.prepared
        values = [value] if len(prepared) == 1 else list(value)
        if len(values) != len(prepared) or not all(map(_Prepared.is_like, prepared, values)):
            raise StateError(
                "loop.state received a value that does not match the prepared state",
                cause=f"{len(prepared)} with the structure and shapes passed to prepare(), in the same order",
                hint="write loop.state = state",
            )
        self._states.tell([(one, i) for i, one in enumerate(prepared)], values)

    def _state(self) -> dict[str, Any]:
        self._states.check_told()
        return {"states": [_named(prepared.value) for prepared in self._states.prepared]}

    def _load(self, state: Mapping[str, Any]) -> None:
        saved, prepared_states = state["states"], self._states.prepared
        check_counts(state, states=prepared_states)
        for values, prepared in zip(saved, prepared_states, strict=True):
            prepared.check(values)
        for values, prepared in zip(saved, prepared_states, strict=True):
            self._restore(prepared, values)
        self._states.loaded()

    def _restore(self, prepared: _Prepared, values: Mapping[str, Any]) -> None:
        names = iter(_named(prepared.value))

        def restored(leaf: Any) -> Any:
            if not _is_value(leaf):
                return leaf
            value = values[next(names)]
            if not isinstance(leaf, jax.Array):
                return value
            array = np.asarray(value)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                impl, where = jax.random.key_impl(leaf), jax.random.key_data(leaf).sharding
                return jax.random.wrap_key_data(self._placing.put(array, where), impl=impl)
            return self._placing.put(array, leaf.sharding)

        old = prepared.value
        prepared.value = _mapped(old, restored)
        if not is_nnx(old):  # later use raises an error, instead of continuing with the weights before the checkpoint
            for leaf in jax.tree.leaves(old):
                if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                    leaf.delete()


class _Placing:
    """The placement of states and batches: on one device, or over a mesh, where all processes have the same arrays.

    Args:
        device: Device of this process.
        mesh: The user's mesh; None creates one.
        devices: One device of each process, by rank.
        divides: Whether states are sharded.

    Attributes:
        mesh, axis: Mesh, and the axis that rows are sharded along.
        n_shards: Number of devices along this axis.
        is_plain: Whether arrays are on a single device.
        is_host: Whether this device is the CPU, which takes NumPy arrays unchanged.
        everywhere: Sharding of replicated arrays.
        whole: Function that returns a replicated array.
    """

    def __init__(self, device: Any, mesh: Mesh | None, devices: Sequence[Any], *, divides: bool) -> None:
        over: Any = PartitionSpec
        self.is_plain = mesh is None and len(devices) == 1
        self.is_host = self.is_plain and device.platform == "cpu"
        self.mesh = mesh or Mesh(np.array(devices), (_DATA,))
        self.axis = _DATA if _DATA in self.mesh.axis_names else self.mesh.axis_names[0]
        self.n_shards = self.mesh.shape[self.axis]
        self._device, self._divides, self._rows = device, divides, NamedSharding(self.mesh, over(self.axis))
        on_device: Any = jax.sharding.SingleDeviceSharding(device)
        self.everywhere = on_device if self.is_plain else NamedSharding(self.mesh, over())
        self.whole = jax.jit(lambda array: array, out_shardings=self.everywhere)

    def put(self, array: Any, sharding: Any) -> Any:
        """Return an array that all processes have as a global array: each keeps its part, and nothing is exchanged."""
        if self.is_plain:
            return jax.device_put(array, self._device)
        if isinstance(array, jax.Array):
            if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
                data = self.put(jax.random.key_data(array), sharding)
                return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
            array = np.asarray(array)
        make: Any = jax.make_array_from_callback
        return make(array.shape, sharding, lambda index: np.array(array[index]))

    def rows(self, array: np.ndarray) -> Any:
        """Return the rows of a batch over the devices: sharded if possible, otherwise replicated."""
        if self.is_host:
            return array
        divides = array.ndim > 0 and array.shape[0] > 0 and array.shape[0] % self.n_shards == 0
        return self.put(array, self._rows if divides else self.everywhere)

    def divided(self, leaf: Any) -> Any:
        """Return the sharding of a leaf of a state: along its longest possible axis, if states are sharded."""
        axes = [axis for axis, size in enumerate(leaf.shape) if size and size % self.n_shards == 0]
        if not self._divides or not axes:
            return self.everywhere
        longest = max(axes, key=lambda axis: leaf.shape[axis])
        over: Any = PartitionSpec
        return NamedSharding(self.mesh, over(*[None] * longest, self.axis))


class _States:
    """The states that a loop has prepared, and whether it knows the newest.

    Args:
        iterations, loaders: Iterations and loaders of the loop.
        count_step: Called after each update.
        group: The processes that compute steps together; None for one.

    Attributes:
        prepared: Prepared states in order.
        n_losses: Number of traced losses of `value_and_grad`.
    """

    def __init__(
        self, iterations: Any, loaders: Sequence[LoopLoader], count_step: Callable[[], object], group: Any
    ) -> None:
        self.prepared: list[_Prepared] = []
        self.n_losses = 0
        self._iterations, self._loaders, self._count_step, self._group = iterations, loaders, count_step, group
        self._told: dict[Any, int] = {}  # number of batches at the time of the newest state
        self._is_loaded = False
        self._n_steps = 0

    def holds(self, value: Any) -> bool:
        """Return whether all arrays of a value are those of prepared states."""
        held = {id(leaf) for prepared in self.prepared for leaf in _arrays_of(prepared.value)}
        arrays = _arrays_of(value)
        return len(arrays) > 0 and all(id(leaf) in held for leaf in arrays)

    def list_with(self, value: Any) -> list[Any] | None:
        """Return the prepared list that has all arrays of a value; None if there is none."""
        arrays = _arrays_of(value)
        for prepared in self.prepared if arrays else ():
            held = {id(leaf) for leaf in _arrays_of(prepared.value)} if type(prepared.value) is list else set()
            if all(id(leaf) in held for leaf in arrays):
                return list(prepared.value)
        return None

    def count_loss(self) -> None:
        """Count a traced loss."""
        self.n_losses += 1

    def tell(self, places: Sequence[tuple[_Prepared, int]], result: Any) -> None:
        """Record the new states of an update, by their places in a step's result; -1 means the whole result."""
        for prepared, place in places:
            prepared.value = result if place < 0 else result[place]
        self._n_steps += 1
        self._count_step()
        self._is_loaded = False
        loader = self._iterations.outermost
        self._told = self._counts() if loader is None else {loader: loader.n_given}

    def loaded(self) -> None:
        """Note that the states come from a checkpoint."""
        self._told, self._is_loaded = self._counts(), True

    def _counts(self) -> dict[Any, int]:
        return {loader: loader.n_given for loader in self._loaders}

    def check_told(self) -> None:
        """Check that the newest states are known.

        Raises:
            StateError: A batch was returned after them.
        """
        told = self._told or dict.fromkeys(self._loaders, 0)
        is_old = any(loader.n_given != count for loader, count in told.items())
        if is_old and not all(is_nnx(prepared.value) for prepared in self.prepared):
            raise StateError(
                "the loop does not know the state after the last batch, because no step of loop.compile() returned it",
                hint="compile the step: step = loop.compile(step); or set each new state: loop.state = state",
            )

    def explained(self, error: Exception) -> Exception:
        """Return an error of a step, with another message if the step received a state that no longer exists, or
        another process has ended.
        """
        if self._group is not None and any(text in str(error) for text in _LOST):
            try:
                self._group.attempt("compute a step", partial(_raise, error))
            except FrameworkError as lost:
                return lost
        if not any(text in str(error) for text in _DELETED):
            return error
        if self._is_loaded:
            return StateError(
                "the step received the state from before the checkpoint, which the loop has replaced",
                hint="use the state of the checkpoint: state = loop.state",
            )
        return StateError(
            f"after {self._n_steps} steps, a step received a state, or a part of one, with memory that an "
            "earlier step has reused",
            hint="continue with the result of the step: state, value = step(state, x, y); or keep a copy: "
            "jax.tree.map(jnp.copy, state)",
        )


class _CompiledStep:
    """A custom step, compiled at its first call."""

    def __init__(
        self,
        step: Callable[..., Any],
        settings: Mapping[str, Any],
        states: _States,
        placing: _Placing,
        precision: str | None,
    ) -> None:
        update_wrapper(self, step)
        self._step, self._settings, self._states, self._placing = step, settings, states, placing
        self._casts = precision == "bf16-mixed"
        self._call: Callable[..., Any] | None = None
        self._told: list[tuple[_Prepared, int]] = []  # each with the position of its new value in the step's result

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if self._call is None:
            self._call = self._compiled(args)
        try:
            result = self._call(*args, **settings)
        except (RuntimeError, ValueError) as error:
            explained = self._states.explained(error)
            if explained is error:
                raise
            raise explained from error
        self._states.tell(self._told, result)
        return result

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        states = self._states_in(args)
        if not states:
            raise ConfigError(
                f"{self._name} did not receive a prepared state",
                available="the result of loop.prepare(), by position",
                hint="write state = loop.prepare(state), and step(state, x, y)",
            )
        for position, value in enumerate(args):
            of_list = None if position in states else self._states.list_with(value)
            if of_list is not None:
                raise ConfigError(
                    f"{self._name} received a part of a prepared list of {len(of_list)}, which the loop takes as one "
                    "state: if these are batches, it neither splits nor accumulates them",
                    available="states are passed whole; batches come from a loader",
                    hint="prepare batches in another iterable: loop.prepare(state, collections.deque(batches))",
                )
        loop_states, step = self._states, self._step
        trees = [prepared for prepared in states.values() if not is_nnx(prepared.value)]

        def traced(*args: Any, **settings: Any) -> Any:
            before = loop_states.n_losses
            result = step(*args, **settings)
            if self._casts and loop_states.n_losses == before:
                raise ConfigError(
                    f"{self._name} does not compute a loss with the loop, which has precision='bf16-mixed'",
                    hint="write value, grads = loop.value_and_grad(loss)(params, x, y), or leave precision out",
                )
            if len(trees) == 1 and trees[0].is_like(result):
                self._told = [(trees[0], -1)]
            else:
                values = list(result) if isinstance(result, (tuple, list)) else []
                places: list[tuple[_Prepared, int]] = []
                for prepared in trees:
                    taken = {place for _, place in places}
                    place = next((i for i, v in enumerate(values) if i not in taken and prepared.is_like(v)), None)
                    if place is None:
                        raise ConfigError(
                            f"{self._name} does not return a new state with the structure "
                            f"and shapes of the {type(prepared.value).__name__} that it receives",
                            available="a function that returns the new state, alone or first: return state, value",
                            hint="compile functions that only evaluate with jax.jit(evaluate)",
                        )
                    places.append((prepared, place))
                self._told = places
            if self._placing.is_plain:
                return result
            for position, prepared in states.items():
                if is_nnx(prepared.value):
                    _mapped_with(_pinned, args[position], prepared.value)
            for prepared, place in self._told:
                value = _mapped_with(_pinned, result if place < 0 else result[place], prepared.value)
                if place < 0:
                    return value
                parts = [value if i == place else part for i, part in enumerate(result)]
                result = result._make(parts) if hasattr(result, "_make") else type(result)(parts)
            return result

        update_wrapper(traced, step)
        if len(trees) < len(states):
            from flax import nnx

            return nnx.jit(traced, **self._settings)
        if any(not _is_value(leaf) for prepared in trees for leaf in jax.tree.leaves(prepared.value)):
            import equinox

            return equinox.filter_jit(traced, **self._settings)
        return jax.jit(traced, **{"donate_argnums": tuple(states), **self._settings})

    @property
    def _name(self) -> str:
        return f"the step {getattr(self._step, '__name__', type(self._step).__name__)!r}"

    def _states_in(self, args: Sequence[Any]) -> dict[int, _Prepared]:
        """Return the prepared states among the arguments, by position."""
        states: dict[int, _Prepared] = {}
        for position, value in enumerate(args):
            for prepared in self._states.prepared:
                if prepared not in states.values() and prepared.is_like(value):
                    states[position] = prepared
                    break
        return states


class _Prepared:
    """A state that was prepared.

    Attributes:
        value: The newest value.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._structure = None if is_nnx(value) else jax.tree.structure(value)
        self._shapes = [np.shape(leaf) for leaf in jax.tree.leaves(value) if _is_value(leaf)]

    def is_like(self, value: Any) -> bool:
        """Return whether a value may be a newer value of this state."""
        if self._structure is None or is_nnx(value):
            return value is self.value
        if jax.tree.structure(value) != self._structure:
            return False
        return [np.shape(leaf) for leaf in jax.tree.leaves(value) if _is_value(leaf)] == self._shapes

    def check(self, saved: Mapping[str, Any]) -> None:
        """Check that a checkpoint belongs to such a state.

        Raises:
            StateError: It does not; the message has the first name that differs.
        """
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = dict.fromkeys(saved)
        for name, leaf in _named(self.value).items():
            ours[name] = None
            if name in saved and isinstance(leaf, jax.Array):
                is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                spec = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
                array = np.asarray(saved[name])
                ours[name] = f"{spec.dtype}{list(spec.shape)}"
                theirs[name] = f"{array.dtype}{list(array.shape)}"
        check_same("state", "is", ours, theirs)


class _Padding:
    """Padding rows of a batch, which do not count.

    Attributes:
        mask: Whether each row of the batch is real.
        is_read: Whether the loop has read the mask.
    """

    def __init__(self, mask: Any) -> None:
        self.mask, self.is_read = mask, False


@dataclass(slots=True)
class _JaxShare(Share):
    padding: _Padding | None = None


class JaxLoader(LoopLoader):
    """A loader whose batches are global arrays of all rows, in each process."""

    ways: ClassVar[tuple[str, ...]] = (*LoopLoader.ways, "padded")
    _stand_in_rows = 0  # all processes have all rows

    def __init__(self, loader: Any, *settings: Any, placing: _Placing, together: int) -> None:
        super().__init__(loader, *settings)
        self._placing = placing
        self._iteration = 0  # a number of the iteration, the same in all processes
        self._marks: dict[Any, int] = {}  # of all shapes of batches that there were
        self._shapes = 0  # identifies those of all batches of the epoch
        self._together = together * (self.processes.size if self.batch == "per_replica" else 1)
        self._n_rows: int | None = None  # of a batch with padding
        if placing.is_host:
            self._in_turn = True  # nothing is copied ahead, and a thread costs more than a small step

    def __len__(self) -> int:
        return -(-len(self.loader) // self._together)

    @property
    def mask(self) -> Any:
        """Whether each row of the last batch is real, [rows]; the others are padding."""
        share = self.share
        if share is None or share.rows is None:
            raise StateError("there was no batch with rows yet", hint="use loader.mask inside the loop")
        if not isinstance(share, _JaxShare) or share.padding is None:
            return self._placing.rows(np.ones(share.rows, bool))
        share.padding.is_read = True
        return share.padding.mask

    def __iter__(self) -> Iterator[Any]:
        self._shapes = 0
        return self._padded() if self.batch == "padded" else super().__iter__()

    def _padded(self) -> Iterator[Any]:
        with closing(super().__iter__()) as batches:  # type: ignore[type-var]
            for batch in batches:
                yield batch
                del batch  # it must not outlive the next
                padding = getattr(self.share, "padding", None)
                if padding is not None and not padding.is_read and padding.mask.shape[0] > (self.share.rows or 0):  # type: ignore[union-attr]
                    raise DataError(
                        f"the last batch has {self.share.rows} rows, and padding up to {padding.mask.shape[0]} rows "  # type: ignore[union-attr]
                        "that was not removed",
                        cause="loader.mask marks the real rows",
                        hint="write value, grads = loop.value_and_grad(loss)(params, x, y, mask=loader.mask), or leave "
                        "batch='padded' out",
                    )

    def _shared(self) -> Iterator[tuple[Any, Share]]:
        try:
            count = len(self)
        except TypeError:
            count = None
        batches = self._checked(iter(self.loader))
        if self.processes.size > 1:
            self._iteration = self.processes.group.n_messages
        for number, batch in enumerate(batches if self._together == 1 else self._merged(batches)):
            if _holds_arrays(batch) and batch[0].ndim:
                rows: int | None = len(batch[0])
            else:
                batch = _on_host(batch)
                rows = rows_of(batch)
            if rows is None and self.processes.size > 1:
                raise self._without_rows()
            if number == 0 and rows is not None:
                self._check_divides(rows)
            yield batch, _JaxShare(rows, rows, number + 1 == count, number)

    def _merged(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of each update as one."""
        while group := [_on_host(batch) for batch in islice(batches, self._together)]:
            rows = [rows_of(batch) for batch in group]
            if len(group) > 1 and rows[0] is None:
                raise self._without_rows()
            yield merged(list(zip(group, rows, strict=True)), np.concatenate, None) if len(group) > 1 else group[0]

    def _check_divides(self, rows: int) -> None:
        n_shards = self._placing.n_shards
        if rows % n_shards and self.batch != "padded" and self.processes.rank == 0:
            warnings.warn(
                printable(
                    f"batches of {rows} rows cannot be split evenly over {n_shards} devices: each computes "
                    f"the whole batch. Hint: use a batch size of {math.ceil(rows / n_shards) * n_shards}, or write "
                    "prepare(loader, batch='padded')"
                ),
                RuntimeWarning,
                stacklevel=user_level(),
            )

    def _marks_of_epoch(self) -> list[int]:
        return [*super()._marks_of_epoch(), self._shapes]

    def _check_shapes(self, contents: Any, number: int) -> None:
        """Compare shapes that are new with those of the processes that were here before; the end of the epoch finds
        the others.

        Raises:
            DataError: They differ.
        """
        arrays = leaves(contents, registry().owners)
        names = tuple(contents) if isinstance(contents, Mapping) else ()
        shapes = *names, *((getattr(leaf, "dtype", type(leaf)), getattr(leaf, "shape", ())) for leaf in arrays)
        mark = self._marks.get(shapes)
        if mark is None:
            found = ", ".join(
                f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__ for leaf in arrays
            )
            text = f"{found} by {', '.join(map(str, names))}" if names else found
            mark = self._marks[shapes] = zlib.crc32(text.encode())
            every = self.processes.group.post(f"{self._iteration}/{number}", text)
            for rank, other in every.items():
                if other != text:
                    raise DataError(
                        f"batch {number} of {self.loader!r} has different shapes in the processes: {text} in process "
                        f"{self.processes.rank}, but {other} in process {rank}",
                        hint="return the same batches in every process; each process takes its rows",
                    )
        self._shapes = (self._shapes * 1_000_003 + mark) % 2**61

    def _moved(self, batch: Any) -> Any:
        if self._placing.is_host and self.batch != "padded":  # of one process
            return batch
        contents, share = batch
        if self.processes.size > 1:
            self._check_shapes(contents, share.number)
        rows, n_rows = share.rows, share.rows
        if self.batch == "padded" and rows is not None:
            n_shards = self._placing.n_shards
            least = self._n_rows or rows
            self._n_rows = n_rows = math.ceil(max(least, rows) / n_shards) * n_shards
            mask = self._placing.rows(np.arange(n_rows) < rows)
            share = _JaxShare(rows, rows, share.is_last, share.number, padding=_Padding(mask))

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufcV":
                return leaf
            if not self._placing.is_plain and leaf.ndim and leaf.shape[0] != rows:
                raise DataError(
                    f"a batch has arrays of {rows} and of {leaf.shape[0]} rows, which cannot be split over devices",
                    hint="use the same number of rows for everything in a batch, or pass other arrays to the step "
                    "directly",
                )
            leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
            if n_rows != rows and leaf.ndim and leaf.shape[0] == rows:
                leaf = np.concatenate([leaf, np.repeat(leaf[-1:], n_rows - rows, axis=0)])
            return self._placing.rows(copy_on_host(leaf) if self._placing.is_plain else leaf)

        with translate_errors("a batch of the loop"):
            return map_leaves(contents, moved, registry().owners), share


def _on_host(batch: Any) -> Any:
    """Return a batch with NumPy arrays instead of tensors of any framework; global arrays stay."""
    if _holds_arrays(batch):
        return batch

    def on_host(leaf: Any) -> Any:
        if isinstance(leaf, (np.ndarray, str, bytes)) or _is_global(leaf) or not hasattr(leaf, "__array__"):
            return leaf
        return np.asarray(leaf)

    return map_leaves(batch, on_host, registry().owners)


def _holds_arrays(batch: Any) -> bool:
    """Return whether a batch is a plain tuple or list of arrays, which needs no search."""
    if type(batch) not in (tuple, list):
        return False
    for item in batch:  # not all(...), whose generator costs as much as the rest of a small batch
        if type(item) is not np.ndarray:
            return False
    return len(batch) > 0


def _contents(value: Any) -> Any:
    """Return a pytree with all contents of a state."""
    if is_nnx(value):
        from flax import nnx

        return nnx.state(value)
    return value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a state with `function` applied to its leaves; NNX objects are changed in place."""
    if is_nnx(value):
        from flax import nnx

        nnx.update(value, jax.tree.map(function, nnx.state(value)))
        return value
    return jax.tree.map(function, value)


def _mapped_with(function: Callable[[Any, Any], Any], value: Any, other: Any) -> Any:
    """Apply `function` like `_mapped`, to two states of the same structure."""
    if is_nnx(value):
        from flax import nnx

        nnx.update(value, jax.tree.map(function, nnx.state(value), nnx.state(other)))
        return value
    return jax.tree.map(function, value, other)


def _pinned(new: Any, old: Any) -> Any:
    """Return an array on the devices of another, while tracing."""
    pin: Any = jax.lax.with_sharding_constraint
    return pin(new, old.sharding) if isinstance(new, jax.Array) and isinstance(old, jax.Array) else new


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, *_NUMBERS))


def _named(value: Any) -> dict[str, Any]:
    """Return the arrays and numbers of a state, by their path in it."""
    paths = jax.tree_util.tree_flatten_with_path(_contents(value))[0]
    values = [(path, leaf) for path, leaf in paths if _is_value(leaf)]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in values]
    if len(set(names)) < len(names):
        names = [jax.tree_util.keystr(path) for path, _ in values]
    return {name: leaf for name, (_, leaf) in zip(names, values, strict=True)}


def _arrays_of(value: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(_contents(value)) if isinstance(leaf, jax.Array)]


def _is_global(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and not leaf.is_fully_addressable


def _raise(error: Exception) -> None:
    raise error


def _digest(leaf: Any) -> str:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    text = f"{array.dtype} {array.shape} ".encode()
    return hashlib.blake2b(text + np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
