"""Arrays from one device to another, where they are, and waiting for them."""

from __future__ import annotations

from typing import Any

from anyaccel.errors import DeviceMismatchError


def only_device(array: Any) -> Any:
    """The device of JAX's that an array is on.

    Raises:
        DeviceMismatchError: it is spread over several.
    """
    own, *others = array.devices()
    if others:
        remedy = "put it on one: jax.device_put(array, device)"
        raise DeviceMismatchError("the array is on several devices", available=str(array.sharding), hint=remedy)
    return own


def sent(array: Any, target: Any, *, bound: bool = False) -> Any:
    """The array on a device of JAX's; the same object if it is there. While traced, an operation that sends it.

    Args:
        array: what is sent.
        target: JAX's device.
        bound: whether it shall be *committed* to the device, as JAX calls it. An array that is there and not committed
            becomes another object in the same memory then.
    """
    import jax

    if isinstance(array, jax.core.Tracer) or array.devices() != {target} or (bound and not array.committed):
        return jax.device_put(array, target)
    return array


def wait_for(target: Any) -> None:
    """Wait until every array that is on a device has its values."""
    import jax

    live: Any = jax.live_arrays
    for one in live():
        if not one.is_deleted() and target in one.devices():
            one.block_until_ready()
