"""Errors of JAX as errors of anyaccel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from anyaccel.adapter.out_of_memory import out_of_memory
from anyaccel.errors import AnyaccelError, DeviceMismatchError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# The last is what the library that multiplies matrices on a CPU says when it cannot allocate.
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "std::bad_alloc", "YNNPACK operation failed")


@contextmanager
def translate_errors(subject: str) -> Iterator[None]:
    """Turn errors about memory or about arrays on several devices into anyaccel's inside this context; others pass.

    Args:
        subject: The operation or object, such as `"an array of 8 bytes on gpu:0"`.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        _raise_translated(error, subject)
        raise


def with_translated_errors(function: Callable[..., Any], subject: str) -> Callable[..., Any]:
    """Return the function with errors translated as in `translate_errors`, at no cost without errors."""

    @wraps(function)
    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (RuntimeError, ValueError) as error:
            _raise_translated(error, subject)
            raise

    return run


def lowered(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of `with_translated_errors`, compiled by `jax.jit`, is compiled from."""
    jitted: Any = function.__wrapped__  # type: ignore[attr-defined]
    return jitted.lower(*arguments)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without what Keras puts above; JAX appends whole paragraphs to
    some.
    """
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    messages = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return messages[0] if messages else type(error).__name__


def _device_of(value: Any) -> str | None:
    """Return the devices of an array that has values; None of others."""
    import jax

    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return None
    return " and ".join(
        f"{jax_device.platform}:{jax_device.id}" for jax_device in sorted(value.devices(), key=lambda device: device.id)
    )


def _raise_translated(error: Exception, subject: str) -> None:
    message = str(error)
    if isinstance(error, AnyaccelError):
        return
    if any(words in message for words in _OUT_OF_MEMORY):
        raise out_of_memory(subject, first_line(error)) from error
    if "incompatible devices" in message:
        from anyaccel.adapter.mixed_tensors import mixed_tensors  # where nothing goes wrong, it is not needed

        hint = "create arrays on the device of the inputs, or move them to one device with anyaccel.move(obj, device)"
        mixed = mixed_tensors(error, _device_of, ("jax", "jaxlib", "flax", "keras", "equinox", "haiku", "optax"))
        problem = f"{f'node {mixed.node!r} in ' if mixed.node else ''}{subject}: arrays are on several devices{mixed}"
        raise DeviceMismatchError(problem, cause=first_line(error), hint=hint) from error
