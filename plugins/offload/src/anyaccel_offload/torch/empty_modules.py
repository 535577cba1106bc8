"""Build modules without memory for their parameters, or directly on a device, in one thread.

Parameters are moved when a module registers them, by hooks that torch calls for each registration in any thread; the
hooks do nothing in threads outside of the contexts below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from anyaccel.arguments import check, flag
from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError

META = torch.device("meta")
_DRAWS = frozenset({torch.rand, torch.randn})
"""Functions whose large results are not computed: initial values of parameters, which are loaded later."""
_LARGE = 2**16
_HUGE = 2**28
"""Elements of a `torch.empty` that is not allocated even for a moment; a smaller one takes no physical memory."""
_state = threading.local()


@call_hints
@contextmanager
def init_empty_weights(include_buffers: bool = False) -> Iterator[None]:
    """Build modules with parameters on torch's `meta` device inside this context: with shape and dtype, without values.

    Ties between parameters are kept. Other threads can build ordinary modules at the same time.

    >>> from torch import nn
    >>> from anyaccel_offload.torch import init_empty_weights
    >>> with init_empty_weights():
    ...     net = nn.Linear(1000, 1000)
    >>> net.weight.device
    device(type='meta')

    Args:
        include_buffers: Whether buffers have no values either. By default buffers are computed, as many models have
            buffers that are in no checkpoint, such as the frequencies of rotary embeddings.

    Raises:
        ConfigError: The argument has another type; or a large buffer has random values, which were not drawn.
    """
    where = "init_empty_weights: "
    with _building(_Building(META, flag(ConfigError, where, "include_buffers", include_buffers))):
        yield


empty_weights = init_empty_weights


@call_hints
@contextmanager
def init_on_device(device: Any, include_buffers: bool = False) -> Iterator[None]:
    """Build modules with parameters on a device inside this context.

    >>> import torch
    >>> from anyaccel_offload.torch import init_on_device
    >>> with init_on_device(torch.device("meta")):
    ...     net = torch.nn.Linear(4, 1)
    >>> net.weight.device
    device(type='meta')

    Args:
        device: Device for torch, such as `"cuda:0"` or `torch.device("meta")`.
        include_buffers: Whether buffers are created there too.

    Raises:
        ConfigError: An argument has another type, or is not a device.
    """
    target = parse_device("init_on_device: ", device)
    with _building(_Building(target, flag(ConfigError, "init_on_device: ", "include_buffers", include_buffers))):
        yield


def parse_device(where: str, device: Any) -> torch.device:
    """Return a torch device from text, a number or a device.

    Raises:
        ConfigError: The value is not a device.
    """
    plain = lambda it: isinstance(it, str | int | torch.device) and not isinstance(it, bool)  # noqa: E731
    check(ConfigError, where, "device", device, plain, "a device of torch", "'cuda:0'")
    try:
        return torch.device(device)
    except RuntimeError as error:
        problem = f"{where}device={device!r} is not a device of torch"
        raise ConfigError(problem, hint="write device='cuda:0', 'cpu' or 'meta'") from error


class _Building:
    """The placement of parameters and buffers in one context.

    Attributes:
        device: Device of the parameters.
        buffers: Whether buffers are placed there too.
    """

    def __init__(self, device: torch.device, buffers: bool) -> None:
        self.device, self.buffers = device, buffers
        self._moved = WeakIdKeyDictionary()
        self._draws = WeakIdKeyDictionary()

    def parameter(self, parameter: nn.Parameter) -> nn.Parameter | None:
        """Return the parameter to register instead, the same for each registration; None registers the original."""
        if parameter.device == self.device:
            return None
        if parameter not in self._moved:
            kind, values = (
                type(parameter),
                {name: value for name, value in vars(parameter).items() if name != "_is_param"},
            )
            moved = kind(parameter.detach().to(self.device), requires_grad=parameter.requires_grad)
            vars(moved).update(values)
            self._moved[parameter] = moved
        found: nn.Parameter = self._moved[parameter]
        return found

    def buffer(self, module: nn.Module, name: str, buffer: Tensor) -> Tensor | None:
        """Return the buffer to register instead; None registers the original."""
        if self.buffers:
            return None if buffer.device == self.device else buffer.to(self.device)
        if buffer.device != META or self.device != META or torch.get_default_device() == META:
            return None  # modules built on the meta device on purpose, as by `from_pretrained`, get values later
        draw = self._draws[buffer] if buffer in self._draws else None  # noqa: SIM401  (its `get` has no types)
        if draw is None or buffer._version:  # noqa: SLF001  (counts writes; torch documents no other)
            raise ConfigError(
                f"init_empty_weights: buffer {name!r} of {type(module).__name__} is computed from parameters, or from "
                "large random values, which do not exist yet",
                hint="write init_empty_weights(include_buffers=True) and set the values of the buffer later",
            )
        drawn: Tensor = draw()
        return drawn

    def postpone(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a random function on `meta`; it is computed only if it becomes a buffer."""
        made = function(*args, **{**kwargs, "device": META})
        real = partial(function, *args, **{**kwargs, "device": torch.get_default_device()})
        if made.numel() < _LARGE:
            return real()
        self._draws[made] = real
        return made


class _Drawing(TorchFunctionMode):
    """Makes functions that draw large tensors return tensors without values."""

    def __init__(self, building: _Building) -> None:
        super().__init__()
        self._building = building

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_placed = any(kwargs.get(name) is not None for name in ("device", "generator", "out"))
        if func in _DRAWS and not is_placed:
            return self._building.postpone(func, args, kwargs)
        if func is torch.empty and not is_placed:
            made = func(*args, **{**kwargs, "device": META})
            if made.numel() >= _HUGE:
                return made
        return func(*args, **kwargs)


@contextmanager
def _building(building: _Building) -> Iterator[None]:
    before = getattr(_state, "building", None)
    with ExitStack() as stack:
        if building.buffers:
            stack.enter_context(building.device)
        elif building.device == META:
            stack.enter_context(_Drawing(building))
        _state.building = building
        try:
            yield
        finally:
            _state.building = before


def _on_parameter(module: nn.Module, name: str, parameter: Any) -> nn.Parameter | None:
    building = getattr(_state, "building", None)
    return None if building is None or parameter is None else building.parameter(parameter)


def _on_buffer(module: nn.Module, name: str, buffer: Any) -> Tensor | None:
    building = getattr(_state, "building", None)
    return None if building is None or buffer is None else building.buffer(module, name, buffer)


# Registered once and permanently: adding and removing hooks would change a dict that other threads iterate over.
register_module_parameter_registration_hook(_on_parameter)  # type: ignore[arg-type]
register_module_buffer_registration_hook(_on_buffer)  # type: ignore[arg-type]
