"""Hooks with Accelerate's interface, which are called before and after the forward of a module.

They are registered as torch hooks. They therefore run even if a module's `forward` was replaced, and are ended even if
the call raises an error.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from anyaccel.arguments import check, flag
from anyaccel.call_hints import call_hints, constructor_hints
from anyaccel.errors import CapabilityError, ConfigError, StateError
from anyaccel_offload.torch.accelerate_words import takes_accelerates
from anyaccel_offload.torch.block_placement import checked_names, named_device
from anyaccel_offload.torch.input_transfer import MovedInputs, first_device
from anyaccel_offload.torch.offload import offload_of


class ModelHook:
    """A hook that is called around the forward of a module. Override the methods that you need.

    One hook may serve several modules and threads: store the data of a call in a `threading.local`.

    >>> from torch import nn
    >>> from anyaccel_offload.torch import ModelHook, add_hook_to_module
    >>> class ShapeHook(ModelHook):
    ...     def post_forward(self, module, output):
    ...         print(tuple(output.shape))
    ...         return output
    >>> net = add_hook_to_module(nn.Flatten(), ShapeHook())
    >>> import torch
    >>> _ = net(torch.ones(3, 2, 2))
    (3, 4)

    Attributes:
        no_grad: Whether the forward computes without gradients.
    """

    no_grad: bool = False

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Prepare a module when the hook is added. **The returned module is used**, and must be the same object."""
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Change the arguments before the forward, and return them."""
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Change the output after the forward, and return it."""
        return output

    def on_error(self, module: nn.Module) -> None:
        """Clean up if the forward, or a later `pre_forward`, raised; called instead of `post_forward`."""

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Clean up a module when the hook is removed."""
        return module


@constructor_hints
class SequentialHook(ModelHook):
    """Several hooks as one: each receives the result of the previous one."""

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = tuple(_checked("SequentialHook: ", hook) for hook in hooks)
        self.no_grad = any(hook.no_grad for hook in self.hooks)

    def init_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Call each hook; if one raises, call `on_error` of the hooks before it."""
        keywords: Mapping[str, Any] = kwargs
        for i, hook in enumerate(self.hooks):
            try:
                args, keywords = hook.pre_forward(module, *args, **keywords)
            except BaseException:
                _tell(self.hooks[:i], module)
                raise
        return args, keywords

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def on_error(self, module: nn.Module) -> None:
        _tell(self.hooks, module)

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


@constructor_hints
class AlignDevicesHook(ModelHook):
    """Moves a module and its inputs to a device. To offload its weights, use `cpu_offload`.

    Args:
        execution_device: Device that computes; None moves nothing.
        io_same_device: Whether outputs are moved to the device of the first input.
        skip_keys: Names of arguments that are not moved.

    Raises:
        ConfigError: An argument is wrong, or the device does not exist.
    """

    @takes_accelerates
    def __init__(
        self,
        execution_device: Any = None,
        *,
        io_same_device: bool = False,
        skip_keys: str | Iterable[str] | None = None,
    ) -> None:
        where = "AlignDevicesHook: "
        self.execution_device = (
            None if execution_device is None else named_device(where, "execution_device", execution_device)
        )
        self.io_same_device = flag(ConfigError, where, "io_same_device", io_same_device)
        self.skip_keys = checked_names(where, "skip_keys", skip_keys)
        self._calls = _Calls()

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Move the module to the device."""
        return module if self.execution_device is None else module.to(self.execution_device)

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Move the inputs to the device."""
        self._calls.stack.append(first_device(args, kwargs))
        if self.execution_device is None:
            return args, kwargs
        moved = MovedInputs()
        try:
            return moved.to(args, self.execution_device), moved.to(kwargs, self.execution_device, self.skip_keys)
        except BaseException:
            self._calls.stack.pop()
            raise

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Move outputs to the device of the first input, if requested."""
        came_from = self._calls.stack.pop()
        return MovedInputs().to(output, came_from) if self.io_same_device and came_from is not None else output

    def on_error(self, module: nn.Module) -> None:
        """Discard the data of the call."""
        self._calls.stack.pop()


@call_hints
def add_hook_to_module(module: nn.Module, hook: ModelHook, append: bool = False) -> nn.Module:
    """Call a hook around the forward of a module.

    Args:
        module: Module, which stays the same object; hooks of its submodules are independent.
        hook: Hook to call.
        append: Whether to keep an existing hook of the module, which is then called first; by default it is removed.

    Raises:
        ConfigError: An argument is wrong.
        StateError: The model is offloaded.
    """
    where = "add_hook_to_module: "
    check(ConfigError, where, "module", module, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    _checked(where, hook)
    if offload_of(module) is not None:
        raise StateError(f"{where}this model is offloaded", hint="add hooks to its modules before it is dispatched")
    before = _attached.get(module)
    if flag(ConfigError, where, "append", append) and before is not None:
        hook = SequentialHook(before.hook, _initialized(hook, module))
        before.detach()
    else:
        remove_hook_from_module(module)
        _initialized(hook, module)
    _attached[module] = _Attached(module, hook)
    return module


@call_hints
def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Remove the hook of a module, if it has one.

    Args:
        module: Module to remove the hook from.
        recurse: Whether to remove the hooks of its submodules too.

    Raises:
        ConfigError: An argument is wrong.
    """
    where = "remove_hook_from_module: "
    check(ConfigError, where, "module", module, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    for part in list(module.modules()) if flag(ConfigError, where, "recurse", recurse) else [module]:
        attached = _attached.pop(part, None)
        if attached is not None:
            attached.detach()
            attached.hook.detach_hook(part)
    return module


@call_hints
def hook_of(module: nn.Module) -> ModelHook | None:
    """Return the hook of a module, or None."""
    attached = _attached.get(module)
    return None if attached is None else attached.hook


class _Calls(threading.local):
    """The calls that a thread is inside of, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Any] = []


class _Attached:
    """A hook on a module: the two torch hooks that call it."""

    def __init__(self, module: nn.Module, hook: ModelHook) -> None:
        self.hook, self._calls = hook, _Calls()
        self._handles: list[RemovableHandle] = [
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        ]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CapabilityError(
            f"this module has a hook, a {type(self.hook).__name__}, and can be neither pickled nor copied with it",
            hint="call remove_hook_from_module(model, recurse=True) first, and add_hook_to_module after it",
        )

    def detach(self) -> None:
        """Remove the torch hooks."""
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._calls.stack.append(None)  # not entered until `pre_forward` has returned
        handled = sys.exc_info()[1]
        result = self.hook.pre_forward(module, *args, **kwargs)
        no_grad = torch.no_grad() if self.hook.no_grad else nullcontext()
        no_grad.__enter__()
        self._calls.stack[-1] = (handled, no_grad)
        return result

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        entered = self._calls.stack.pop()
        if entered is None:
            return None
        entered[1].__exit__(None, None, None)
        if sys.exc_info()[1] is not entered[0]:  # torch calls this while it handles an error of the call
            self.hook.on_error(module)
            return None
        return self.hook.post_forward(module, output)


_attached: weakref.WeakKeyDictionary[nn.Module, _Attached] = weakref.WeakKeyDictionary()


def _initialized(hook: ModelHook, module: nn.Module) -> ModelHook:
    if hook.init_hook(module) is not module:
        raise ConfigError(
            f"init_hook of {type(hook).__name__} returns another object than the module", hint="return the module"
        )
    return hook


def _checked(where: str, hook: Any) -> ModelHook:
    fits = lambda it: isinstance(it, ModelHook)  # noqa: E731
    made: ModelHook = check(ConfigError, where, "hook", hook, fits, "a ModelHook", "AlignDevicesHook('cuda:0')")
    return made


def _tell(hooks: Iterable[ModelHook], module: nn.Module) -> None:
    for hook in hooks:
        hook.on_error(module)
