"""Transfer observer: records copies between devices and the host where JAX makes them.

Arguments of compiled functions are seen by the hook that JAX calls after each of them (also for its NaN check), other
values where its Python code passes them to the runtime, and reads where an array becomes NumPy's. Scalars are not
counted: they are part of a call, like those of a kernel. An array on the CPU that becomes NumPy's counts as a transfer
to the host, because the same code makes one on a GPU.
"""

# ruff: noqa: SLF001  (private names of JAX, which `replaced_names` lists)

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src import api, array, lib

from anyaccel.adapter.transfer_observer import (
    ObservesByReplacing,
    Record,
    TransferEvent,
    TransferKind,
    numpy_reads,
    replaced,
)
from anyaccel.device import Device

HOST = Device("cpu")
xla_client: Any = getattr(lib, "xla_client", None)
_ARRAY: Any = getattr(array, "ArrayImpl", None)
_PATCHED: tuple[tuple[Any, str], ...] = (
    (api, "_post_hook_state"),
    (xla_client, "batched_device_put"),
    (xla_client, "batched_copy_array_to_devices_with_sharding"),
    (_ARRAY, "_value"),
    (_ARRAY, "_npy_value"),
    (_ARRAY, "block_until_ready"),
    (jax, "block_until_ready"),
)

DeviceOf = Callable[[Any], Device]
"""The device that JAX's own object for it is."""


class JaxTransfers(ObservesByReplacing):
    """All transfers and waits; an array on the CPU that becomes NumPy's counts as one."""

    framework_name = "JAX"

    def replaced_names(self) -> Sequence[tuple[Any, str]]:
        return _PATCHED

    def can_observe_transfers(self) -> bool:
        return super().can_observe_transfers() and not unseen_kinds()

    def unobserved_transfers(self) -> Sequence[str]:
        missing = super().unobserved_transfers()
        if missing or not (unseen := ", ".join(unseen_kinds())):
            return missing
        return [f"JAX {jax.__version__} copies from {unseen} past the functions that are observed; JAX 0.10 does not"]

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Observe by functions around JAX's own."""
        return observed(record, self.backend.device_named)


@contextmanager
def observed(record: Record, device_of: DeviceOf) -> Iterator[None]:
    """Tell `record` each transfer and wait inside; not where names are missing."""
    observer = _Observer(record, cache(device_of))
    with observer.compiled_calls(), observer.puts(), observer.reads(), observer.waits():
        yield


@cache
def unseen_kinds() -> tuple[str, ...]:
    """Return the kinds of copies that are not observed, as a copy to a device and back shows.

    JAX before 0.10 has the functions that are replaced, but calls others.
    """
    kinds: set[str] = set()
    with jax.transfer_guard("allow"), observed(lambda event: kinds.add(event.kind), lambda native: HOST):
        np.asarray(jax.device_put(np.ones(2, np.float32)))
    return tuple(kind for kind in ("host to device", "device to host") if kind not in kinds)


class _Observer:
    """Create events from the calls of JAX."""

    def __init__(self, record: Record, device_of: DeviceOf) -> None:
        self._record, self._device_of = record, device_of

    def _tell(
        self,
        kind: TransferKind,
        source: Device,
        target: Device,
        name: str,
        nbytes: int = 0,
        waits: bool = True,
        result: Any = None,
    ) -> None:
        self._record(
            TransferEvent(
                kind=kind,
                source=source,
                target=target,
                operation=name,
                nbytes=nbytes,
                waits=waits,
                result=result,
            )
        )

    # -- to devices ------------------------------------------------------------------------------------------------

    @contextmanager
    def compiled_calls(self) -> Iterator[None]:
        """Observe arguments of compiled functions, and of eager operations, which JAX compiles as well."""
        state = api._post_hook_state
        global_hook, local = state.get_global(), state.get_local()
        is_set = type(local) is not object  # JAX's mark for a thread without a hook of its own; None is one, too
        before = local if is_set else global_hook

        def hook(function: Any, args: Any, kwargs: Any, results: Any) -> None:
            if before is not None:
                before(function, args, kwargs, results)
            leaves = jax.tree_util.tree_leaves((args, kwargs))
            host_leaves = [leaf for leaf in leaves if _is_host_array(leaf)]
            if host_leaves or jax.local_device_count() > 1:
                self._call(
                    getattr(function, "__name__", "jit"), host_leaves, leaves, jax.tree_util.tree_leaves(results)
                )

        state.set_global(hook)
        if is_set:  # as jax.debug_nans leaves it behind
            state.set_local(hook)
        try:
            yield
        finally:
            state.set_global(global_hook)
            if is_set:
                state.set_local(local)

    def _call(self, name: str, host_leaves: Sequence[Any], leaves: Sequence[Any], results: Sequence[Any]) -> None:
        target = next((_native(result) for result in results if isinstance(result, _ARRAY)), None)
        if target is None:  # without results nobody knows where it ran, other than from its arguments
            target = next((_native(leaf) for leaf in leaves if isinstance(leaf, _ARRAY)), jax.local_devices()[0])
        for leaf in host_leaves:
            self._tell("host to device", HOST, self._device_of(target), name, _nbytes(leaf), waits=False)
        for leaf in leaves:
            if isinstance(leaf, _ARRAY) and not leaf.committed and target not in leaf.devices():
                self._moved(leaf, target, name)

    def _moved(self, source: Any, target: Any, name: str, result: Any = None) -> None:
        start, end = self._device_of(_native(source)), self._device_of(target)
        self._tell("device to device", start, end, name, _nbytes(source), waits=False, result=result)

    @contextmanager
    def puts(self) -> Iterator[None]:
        """`device_put`, and the arguments of a call that is compiled first."""
        put, copy = xla_client.batched_device_put, xla_client.batched_copy_array_to_devices_with_sharding

        def told_put(aval: Any, sharding: Any, values: Any, devices: Any, *rest: Any, **more: Any) -> Any:
            result = put(aval, sharding, values, devices, *rest, **more)
            for value, device in zip(values, devices, strict=False):
                self._put(value, device, result)
            return result

        def told_copy(arrays: Any, devices: Any, *rest: Any, **more: Any) -> Any:
            results = copy(arrays, devices, *rest, **more)
            for value, targets, result in zip(arrays, devices, results, strict=False):
                for target in targets:
                    self._put(value, target, result)
            return results

        with (
            replaced(xla_client, "batched_device_put", told_put),
            replaced(xla_client, "batched_copy_array_to_devices_with_sharding", told_copy),
        ):
            yield

    def _put(self, value: Any, device: Any, result: Any) -> None:
        result = result if isinstance(result, _ARRAY) else None
        if isinstance(value, _ARRAY):
            if device not in value.devices():
                self._moved(value, device, "device_put", result)
        elif _is_host_array(value):
            target = self._device_of(device)
            self._tell("host to device", HOST, target, "device_put", _nbytes(value), waits=False, result=result)

    # -- to the host -----------------------------------------------------------------------------------------------

    @contextmanager
    def reads(self) -> Iterator[None]:
        """Observe arrays that become NumPy's, for any reason; cached copies are not copied again."""
        by_array: Any = _ARRAY.__dict__["_value"]

        def is_read(converted: Any) -> bool:
            return type(converted) is _ARRAY and converted._npy_value is None

        with numpy_reads(is_read, self._read) as is_reading:

            def value(this: Any) -> Any:
                if this._npy_value is None and not is_reading():
                    self._read(this, "_value")
                return by_array.fget(this)

            with replaced(_ARRAY, "_value", property(value)):
                yield

    def _read(self, value: Any, name: str) -> None:
        source = self._device_of(_native(value))
        self._tell("device to host", source, HOST, name, _nbytes(value))

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Observe `block_until_ready` of an array, and of a tree of arrays."""
        wait_for_array: Any = _ARRAY.block_until_ready
        wait_for_tree: Any = jax.block_until_ready

        def block(this: Any) -> Any:
            self._waited([this])
            return wait_for_array(this)

        def block_tree(tree: Any) -> Any:
            self._waited([leaf for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, _ARRAY)][:1])
            return wait_for_tree(tree)

        with replaced(_ARRAY, "block_until_ready", block), replaced(jax, "block_until_ready", block_tree):
            yield

    def _waited(self, arrays: Iterable[Any]) -> None:
        for value in arrays:
            self._tell("wait", self._device_of(_native(value)), HOST, "block_until_ready")


def _is_host_array(value: Any) -> bool:
    """Whether it is an array of NumPy with an axis, as lists become, too."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def _native(value: Any) -> Any:
    return next(iter(value.devices()))


def _nbytes(value: Any) -> int:
    return int(math.prod(value.shape) * value.dtype.itemsize)
