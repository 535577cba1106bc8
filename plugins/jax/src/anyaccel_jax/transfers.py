"""Arrays from one device to another, the device they are on, and waiting for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.errors import DeviceMismatchError


def single_device(array: Any) -> Any:
    """Return the JAX device that an array is on.

    Raises:
        DeviceMismatchError: it is spread over several.
    """
    device, *others = array.devices()
    if others:
        hint = "put it on one: jax.device_put(array, device)"
        raise DeviceMismatchError("the array is on several devices", cause=str(array.sharding), hint=hint)
    return device


def put(array: Any, target: Any, *, commit: bool = False) -> Any:
    """Return the array on a JAX device; the same object if it is on that device already. While tracing, an operation
    moves it.

    Args:
        array: The array.
        target: The JAX device.
        commit: Whether to *commit* the array to the device, in JAX's terms. An uncommitted array on the device then
            becomes another object in the same memory.
    """
    import jax

    if isinstance(array, jax.core.Tracer) or array.devices() != {target} or (commit and not array.committed):
        return jax.device_put(array, target)
    return array


def put_alike(array: Any, sharding: Any) -> Any:
    """Return an array of the host, over a sharding, whose devices may be of several processes that all have it
    alike.
    """
    import jax

    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(np.shape(array), sharding, lambda index: array[index])  # compares nothing


def put_like(array: Any, like: Any) -> Any:
    """Return the array where another is, with its sharding if it has its shape, otherwise on all of its devices; as it
    is while tracing.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(like, jax.core.Tracer):
        return array
    sharding = like.sharding
    if isinstance(sharding, NamedSharding) and np.shape(array) != like.shape:
        everywhere: Any = PartitionSpec
        sharding = NamedSharding(sharding.mesh, everywhere())
    return jax.device_put(array, sharding)


def wait_for(target: Any) -> None:
    """Wait until every array on a device has its values."""
    import jax

    live: Any = jax.live_arrays
    for array in live(target.platform):  # without it, those of the default platform
        if not array.is_deleted() and target in array.devices():
            array.block_until_ready()
