"""Transfers: functions that copy a value from one segment's framework and device to another's, chosen beforehand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import OutOfMemoryError
from anyaccel.graph.transfers import route
from anyaccel.results.events import LogEvent, discard_event

Transfer = Callable[[Any], Any]


class TransferEnd(NamedTuple):
    """One end of a transfer."""

    backend: ComputingBackend
    device: Device

    def __str__(self) -> str:
        return f"{self.backend.framework} on {self.device}"


def transfer(
    source: TransferEnd, target: TransferEnd, name: str = "values", log_event: LogEvent = discard_event
) -> Transfer:
    """A function from a tensor at `source` to one at `target`.

    The result may share memory with its argument: a program never writes to its inputs.

    Args:
        source: where the tensor is.
        target: where it goes.
        name: what is transferred, for events.
        log_event: is told if memory cannot be shared although both backends promise it.
    """
    kind = route(source.backend, source.device, target.backend, target.device)
    if kind == "move":
        return _identity if source.device == target.device else partial(_move, target, name)
    through_host = partial(_through_host, source.backend, target, name)
    if kind != "share":
        return through_host
    message = f"{name} go from {source} to {target} through host memory, as sharing memory failed"
    return SharedTransfer(target, through_host, partial(_log_failure, log_event, message))


class SharedTransfer:
    """Shares memory by DLPack. From the first failure on it copies through host memory.

    Args:
        target: where the tensor goes.
        through_host: copies a tensor there through host memory.
        on_failure: called once, with the error that sharing raised.
    """

    def __init__(self, target: TransferEnd, through_host: Transfer, on_failure: Callable[[Exception], None]) -> None:
        self._share = partial(_share, target)
        self._through_host = through_host
        self._on_failure = on_failure
        self._failed = False

    def __call__(self, value: Any) -> Any:
        """The value at the target.

        Raises:
            AnyaccelError: it cannot be copied through host memory either.
        """
        if self._failed:
            return self._through_host(value)
        try:
            return self._share(value)
        except OutOfMemoryError:
            raise
        except Exception as error:  # frameworks refuse with exceptions of their own
            copied = self._through_host(value)
            self._failed = True
            self._on_failure(error)
            return copied


def _log_failure(log_event: LogEvent, message: str, error: Exception) -> None:
    lines = str(error).splitlines()
    log_event("transfer", f"{message} ({type(error).__name__}: {lines[0] if lines else ''})")


def _identity(value: Any) -> Any:
    return value


def _move(target: TransferEnd, edge: str, value: Any) -> Any:
    """`edge` is read by ledgers, from the stack, as in `_through_host`."""
    return target.backend.move(value, target.device)


def _share(target: TransferEnd, value: Any) -> Any:
    # NumPy turns arrays without axes into scalars, which do not support DLPack.
    return target.backend.from_dlpack(np.asarray(value) if isinstance(value, np.generic) else value, target.device)


def _through_host(source: ComputingBackend, target: TransferEnd, edge: str, value: Any) -> Any:
    return target.backend.from_host(np.asarray(source.to_host(value)), target.device)
