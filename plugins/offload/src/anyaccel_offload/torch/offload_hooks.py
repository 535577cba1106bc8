"""Hooks that copy weights and inputs to a device when a module is called, and the passes of each thread."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from anyaccel.errors import CapabilityError
from anyaccel_offload.torch.input_transfer import MovedInputs, first_device
from anyaccel_offload.torch.staging import ForwardPass, Staging
from anyaccel_offload.torch.streamed_block import StreamedBlock


class Passes(threading.local):
    """The state of a thread's calls.

    Attributes:
        scopes: Modules with blocks that the thread is inside of, each with the device for its outputs.
        runs: Pass over the blocks of each device.
        moved: Inputs that were moved.
    """

    def __init__(self, stagings: Collection[Staging]) -> None:
        self.stagings = stagings
        self.scopes: list[tuple[nn.Module, torch.device | None, bool]] = []
        self.runs: dict[Staging, ForwardPass] = {}
        self.moved = MovedInputs()

    def begin(self, module: nn.Module, came_from: torch.device | None) -> None:
        """Begin a call of a module that contains blocks."""
        if any(scope[0] is module for scope in self.scopes):  # an earlier call was interrupted, as by Ctrl-C
            self.abandon()
        if not self.scopes:
            self.runs = {staging: ForwardPass() for staging in self.stagings}
            for staging, run in self.runs.items():
                staging.begin(run)
        self.scopes.append((module, came_from, torch.is_grad_enabled()))

    def end(self, module: nn.Module) -> torch.device | None:
        """End a call, with or without an error, and return the device for its outputs; None if they stay."""
        if not self.scopes or self.scopes[-1][0] is not module:
            return None
        _, came_from, grad = self.scopes.pop()
        if self.scopes:
            return None
        self._finish(grad)
        return came_from

    def abandon(self) -> None:
        """Discard calls that were interrupted."""
        self.scopes.clear()
        self._finish(False)

    def _finish(self, grad: bool) -> None:
        for staging, run in self.runs.items():
            staging.end(run, grad)
        self.runs = {}
        self.moved.clear()

    def run_for(self, staging: Staging) -> ForwardPass:
        """Return this thread's pass over the blocks of a device; a separate pass for a block that is called alone."""
        if staging not in self.runs:
            self.runs[staging] = ForwardPass(ahead=False)
        return self.runs[staging]

    def end_alone(self, staging: Staging) -> None:
        """End the pass of a block that was called alone."""
        run = self.runs.get(staging)
        if not self.scopes and run is not None and not run.visits:
            staging.end(self.runs.pop(staging), torch.is_grad_enabled())


class OffloadHook:
    """A hook of a module of an offloaded model, which cannot be pickled or copied."""

    def __init__(self, passes: Passes, device: torch.device, skipped: Collection[str]) -> None:
        self._passes, self._device, self._skipped = passes, device, skipped

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CapabilityError(
            "this model is offloaded and can be neither pickled nor copied",
            hint="save model.state_dict(), or call remove_offload(model) first",
        )

    def attach(self, module: nn.Module) -> list[RemovableHandle]:
        """Register the hook before and after calls of a module."""
        return [
            module.register_forward_pre_hook(self.before, prepend=True, with_kwargs=True),
            module.register_forward_hook(self.after, always_call=True),
        ]

    def before(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Move the inputs to the device."""
        moved = self._passes.moved
        new_args, new_kwargs = moved.to(args, self._device), moved.to(kwargs, self._device, self._skipped)
        return None if new_args is args and new_kwargs is kwargs else (new_args, new_kwargs)

    def after(self, module: nn.Module, args: Any, result: Any) -> Any:
        """Do nothing after a call."""


class ScopeHook(OffloadHook):
    """The hook of a module that contains blocks: the outermost one begins and ends a pass."""

    def before(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Begin a pass, and move the inputs to the device of the first block."""
        _refuse_compiling()
        self._passes.begin(module, first_device(args, kwargs))
        return super().before(module, args, kwargs)

    def after(self, module: nn.Module, args: Any, result: Any) -> Any:
        """End the pass, and move outputs to the device of the inputs."""
        came_from = self._passes.end(module)
        return None if came_from is None else MovedInputs().to(result, came_from)


class BlockHook(OffloadHook):
    """The hook of a block with offloaded weights."""

    def __init__(
        self,
        passes: Passes,
        device: torch.device,
        skipped: Collection[str],
        *,
        staging: Staging,
        block: StreamedBlock,
    ) -> None:
        super().__init__(passes, device, skipped)
        self._staging, self._block = staging, block

    def before(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Copy weights and inputs to the device."""
        _refuse_compiling()
        self._staging.enter(self._block, self._passes.run_for(self._staging))
        return super().before(module, args, kwargs)

    def after(self, module: nn.Module, args: Any, result: Any) -> Any:
        """Put the offloaded weights into the block again."""
        self._staging.exit(self._block, self._passes.run_for(self._staging))
        self._passes.end_alone(self._staging)


def _refuse_compiling() -> None:
    if torch.compiler.is_compiling():
        raise CapabilityError(
            "an offloaded model cannot be compiled as a whole: its weights are copied for each step",
            hint="call it without torch.compile, or compile modules inside its blocks before it is dispatched",
        )
