"""Whole models that take turns on a device: each is copied there when it is called, and leaves it for the next."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import check
from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError
from anyaccel.host_memory import host_memory
from anyaccel_offload.torch.block_placement import checked_execution_device
from anyaccel_offload.torch.input_transfer import MovedInputs
from anyaccel_offload.torch.offload import BlockPlace, Offload
from anyaccel_offload.torch.offload_hooks import OffloadHook, Passes
from anyaccel_offload.torch.staging import ForwardPass


@call_hints
def cpu_offload_with_hook(
    model: nn.Module, execution_device: Any = None, prev_module_hook: CpuOffloadHook | None = None
) -> tuple[nn.Module, CpuOffloadHook]:
    """Keep a model in host memory, and move it to a device from its first call until its hook's `offload`.

    Nothing is copied back, as calls do not change weights. With gradients, the model is on the device only during each
    call.

    Args:
        model: Model with values; it is changed in place.
        execution_device: Device that computes; None for torch's accelerator, or the CPU on a machine without one.
        prev_module_hook: Hook of the previous model, which leaves the device when this one is called.

    Returns:
        The model and its hook.

    Raises:
        ConfigError, StateError: See `cpu_offload`.
    """
    where = "cpu_offload_with_hook: "
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if execution_device is None and accelerator is not None:
        execution_device = torch.device(accelerator.type, torch.accelerator.current_device_index())
    device = checked_execution_device(where, model, execution_device)
    fits = lambda it: it is None or isinstance(it, CpuOffloadHook)  # noqa: E731
    check(ConfigError, where, "prev_module_hook", prev_module_hook, fits, "a hook or None", "hook")
    place = BlockPlace(name="", device=device, tier="cpu")
    offload = Offload(model, [place], pinned_memory=host_memory()[1] // 2, attach=False)
    hook = CpuOffloadHook(offload, device, prev_module_hook)
    offload.adopt(hook.attach(model))
    return model, hook


class CpuOffloadHook(OffloadHook):
    """The hook of a model that takes turns with others on a device; `cpu_offload_with_hook` creates it."""

    def __init__(self, offload: Offload, device: torch.device, previous: CpuOffloadHook | None) -> None:
        super().__init__(Passes(()), device, ())
        self._offload, self._previous = offload, previous
        self._staging = offload.stagings.get(device)
        self._run: ForwardPass | None = None
        self._calls = 0
        self._lock = threading.Condition(threading.RLock())

    def before(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Move the previous model off the device, and this one onto it, with the inputs of each call."""
        if self._previous is not None:
            self._previous.offload()
        with self._lock:
            if self._run is not None and torch.is_grad_enabled():
                self.offload()
            if self._staging is not None and self._run is None:
                run = ForwardPass(ahead=False)
                self._staging.enter(self._staging.blocks[0], run)
                self._run = run
            self._calls += 1
        moved = MovedInputs()
        return moved.to(args, self._device), moved.to(kwargs, self._device)

    def after(self, module: nn.Module, args: Any, result: Any) -> Any:
        """End the call; with gradients, the model leaves the device."""
        with self._lock:
            self._calls = max(0, self._calls - 1)
            self._lock.notify_all()
            if torch.is_grad_enabled():
                self.offload()

    def offload(self) -> None:
        """Release the device as soon as no thread is calling the model."""
        with self._lock:
            self._lock.wait_for(lambda: not self._calls)
            run, self._run = self._run, None
            if run is not None and self._staging is not None:
                self._staging.exit(self._staging.blocks[0], run)
                self._staging.end(run, False)

    def remove(self) -> None:
        """Remove the hook; the weights stay in host memory."""
        self.offload()
        self._offload.remove()
