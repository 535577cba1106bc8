"""The backward pass over simulated devices: in the thread of who calls it, and its errors told when it has ended.

Inside it, torch asks the device for its streams by way of Python, and ends the process if an error of Python is on its
way at that moment. So an error is kept, something useless is given in its place, which torch refuses by itself, and the
error is raised in place of that refusal.
"""

# ruff: noqa: SLF001  (names inside torch, which inside.py asks for before)

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function

_kept = threading.local()
NOTHING = "an error is on its way"


def is_under_way() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def keep(error: Exception) -> str:
    """Keep an error until the pass has ended, and give what torch refuses. Of several errors, the first counts."""
    if getattr(_kept, "error", None) is None:
        _kept.error = error
    return NOTHING


def install() -> None:
    """Let torch's backward passes, and functions that users wrote for them, go this way."""
    torch.autograd._engine_run_backward = _telling(torch.autograd._engine_run_backward)  # type: ignore[attr-defined]
    function.BackwardCFunction.apply = _keeping(function.BackwardCFunction.apply)  # type: ignore[method-assign]


def _telling(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def backward(outputs: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        _check(outputs, grads)
        with torch.autograd.set_multithreading_enabled(False):  # torch has a thread for sim:0 only
            try:
                found = run(outputs, grads, *args, **kwargs)
            except Exception:
                error, _kept.error = getattr(_kept, "error", None), None
                if error is None:
                    raise
                raise error from None
        return found

    return backward


def _check(outputs: Sequence[Any], grads: Sequence[Any]) -> None:
    """What torch leaves out for tensors like ours: that a pass begins with gradients where the outputs are."""
    for i, (output, grad) in enumerate(zip(outputs, grads, strict=False)):
        if isinstance(output, Tensor) and isinstance(grad, Tensor) and grad.dim() and output.device != grad.device:
            raise RuntimeError(
                f"the pass was given an invalid gradient at index {i} - expected device {output.device} but got "
                f"{grad.device}"
            )


def _keeping(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def call(self: Any, *args: Any) -> Any:
        try:
            return apply(self, *args)
        except Exception as error:
            return keep(error)

    return call
