"""Backward passes over simulated devices: on the caller's thread, and with errors raised when the pass has ended.

During a backward pass, torch asks the device for its streams through Python, and ends the process if a Python error is
pending at that moment. So an error is deferred: torch receives a value that it refuses, and the deferred error is
raised instead of that refusal.
"""

# ruff: noqa: SLF001  (private names of torch, which `registration` checks first)

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function

_deferred = threading.local()
REFUSED = "an error is deferred to the end of the backward pass"


def in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def defer(error: Exception) -> str:
    """Keep an error until the pass has ended, the first of several; returns what torch refuses."""
    if getattr(_deferred, "error", None) is None:
        _deferred.error = error
    return REFUSED


def install() -> None:
    """Wrap torch's backward pass, and the backward functions that users write."""
    torch.autograd._engine_run_backward = _raising_deferred(torch.autograd._engine_run_backward)  # type: ignore[attr-defined]
    function.BackwardCFunction.apply = _deferring(function.BackwardCFunction.apply)  # type: ignore[method-assign]
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    hooks.__init__ = _unpacking_deferred(hooks.__init__)


def _raising_deferred(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def backward(outputs: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        _check_devices(outputs, grads)
        with torch.autograd.set_multithreading_enabled(False):  # torch has a thread for sim:0 only
            try:
                return run(outputs, grads, *args, **kwargs)
            except Exception:
                error, _deferred.error = getattr(_deferred, "error", None), None
                if error is None:
                    raise
                raise error from None

    return backward


def _check_devices(outputs: Sequence[Any], grads: Sequence[Any]) -> None:
    """Check that gradients are where the outputs are, which torch does not do for tensor subclasses."""
    for i, (output, grad) in enumerate(zip(outputs, grads, strict=False)):
        if isinstance(output, Tensor) and isinstance(grad, Tensor) and grad.dim() and output.device != grad.device:
            raise RuntimeError(
                f"the pass was given an invalid gradient at index {i} - expected device {output.device} but got "
                f"{grad.device}"
            )


def _deferring(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def call(self: Any, *args: Any) -> Any:
        try:
            return apply(self, *args)
        except Exception as error:
            return defer(error)

    return call


def _unpacking_deferred(init: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `saved_tensors_hooks`: errors in the unpacking of a tensor are deferred."""

    @functools.wraps(init)
    def call(self: Any, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        def unpack_or_defer(kept: Any) -> Any:
            try:
                return unpack(kept)
            except Exception as error:
                if in_backward():
                    return defer(error)
                raise

        init(self, pack, unpack_or_defer)

    return call
