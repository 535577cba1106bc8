"""What is borrowed from the user's modules and from torch, to be given back as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anyaccel.errors import PhaseError
from anyaccel.segment import Segment
from anyaccel_torch import keras
from anyaccel_torch.module_state import parts, states


class Modes:
    """Whether each part of some modules was in training mode."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept = {part: part.training for module in modules for part in parts(module)}

    def enter(self, module: nn.Module, *, training: bool) -> None:
        """Switch a module between training and evaluation, if it is not there yet.

        Parts that were in evaluation mode inside a module in training mode stay so: that is how a user freezes the
        statistics of a BatchNorm. Keras layers do not read modes: there it is done by `layer.trainable = False`.
        """
        if module.training is training:
            return
        module.train(training)
        if training and self._kept[module]:
            for part in module.modules():
                part.training = self._kept.get(part, True)

    def restore(self) -> None:
        """Set every part to what it was; calls no `train` of the user's."""
        for part, training in self._kept.items():
            part.training = training


class Gradients:
    """Which parameters wanted a gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._kept = {id(parameter): (parameter, parameter.requires_grad) for parameter in parameters}

    def only(self, trained: Iterable[nn.Parameter]) -> None:
        """Let only `trained` want one; an old gradient that they hold is forgotten."""
        wanted = {id(parameter): parameter for parameter in trained}
        for key, (parameter, _) in self._kept.items():
            parameter.requires_grad_(key in wanted)
        for parameter in wanted.values():
            parameter.grad = None

    def restore(self) -> None:
        """As it was."""
        for parameter, wanted in self._kept.values():
            parameter.requires_grad_(wanted)


class Buffers:
    """Copies of the buffers of some modules, and of the parameters that Keras keeps in their stead."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        modules = list(modules)
        self._states = [(state, state.detach().clone()) for module in modules for state in states(module)]
        self._kept = [
            (part, name, buffer, buffer.detach().clone())
            for part in {part for module in modules for part in parts(module)}
            for name, buffer in part.named_buffers(recurse=False)
            if not is_lazy(buffer)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copies back, and the same tensors into their places if a module replaced them."""
        for part, name, buffer, copy in self._kept:
            whole = buffer.shape == copy.shape
            setattr(part, name, buffer.copy_(copy) if whole else copy.clone())
        for state, copy in self._states:
            state.copy_(copy)


class RandomState:
    """The states of torch's random generators, the CPU's and those of some devices, and of Keras's `seeds`."""

    def __init__(self, devices: Iterable[torch.device], seeds: Sequence[nn.Parameter] = ()) -> None:
        self._kept = {device: _get(device) for device in _drawing(devices)}
        self._seeds = [(each, each.detach().clone()) for each in seeds]

    @torch.no_grad()
    def restore(self) -> None:
        """As it was."""
        for each, copy in self._seeds:
            each.copy_(copy)
        for device, state in self._kept.items():
            _set(device, state)


def seed(devices: Iterable[torch.device], key: int, seeds: Sequence[nn.Parameter] = ()) -> None:
    """Start the generators of the CPU and of `devices` from a 64-bit key, and Keras's `seeds`; others go on."""
    keras.draw(seeds, key)
    for device in _drawing(devices):
        _set(device, torch.Generator(device).manual_seed(key).get_state())


@contextmanager
def undisturbed(model: nn.Module, devices: Sequence[torch.device]) -> Iterator[None]:
    """Inside, the model is in evaluation mode; modes, buffers and random states are as before afterwards."""
    kept = (Modes([model]), Buffers([model]), RandomState(devices))
    try:
        model.eval()
        yield
    finally:
        for each in kept:
            each.restore()


def _drawing(devices: Iterable[torch.device]) -> set[torch.device]:
    """Those that have a generator, and the CPU in any case: its generator is used wherever a module runs."""
    return {torch.device("cpu"), *(device for device in devices if device.type != "meta")}


def _get(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def _set(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


class Lent:
    """A segment's inputs, which belong to somebody else: what a module writes to is copied before.

    The first batch of each kind is copied whole, and tells by torch's count of writes which inputs those are. Which
    modules run depends on the mode and on the inputs that there are.
    """

    def __init__(self, segment: Segment) -> None:
        self._label = segment.label
        self._names = tuple(segment.inputs)
        self._written: dict[tuple[bool, ...], set[int]] = {}

    @contextmanager
    def given(self, inputs: Sequence[Any], *, training: bool) -> Iterator[list[Any]]:
        """The inputs as modules may have them; None stays None.

        Raises:
            PhaseError: at the end, a module has written to an input that it left alone before.
        """
        kind = (training, *(tensor is None for tensor in inputs))
        written = self._written.get(kind, set(range(len(inputs))))
        given = [t.clone() if i in written and t is not None else t for i, t in enumerate(inputs)]
        before = [_writes(tensor) for tensor in given]
        yield given
        found = {i for i, tensor in enumerate(given) if _writes(tensor) != before[i]}
        if kind not in self._written:
            self._written[kind] = found
        elif found - written:
            raise self._overwritten(min(found - written))

    def _overwritten(self, index: int) -> PhaseError:
        name = self._names[index]
        return PhaseError(
            f"a module of segment {self._label!r} has written to its input {name!r}, and did not on the first "
            "batch: others may read that memory",
            hint="let it write to a copy: x = x.clone()",
        )


def _writes(tensor: Tensor | None) -> int:
    """Torch's count of writes to a tensor; 0 where there is none."""
    return 0 if tensor is None else tensor._version  # noqa: SLF001
