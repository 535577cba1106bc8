"""State of the user's modules and of torch that a program changes and must restore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from anyaccel import rng
from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.errors import GraphError, PhaseError, StateError
from anyaccel.segment import Segment
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import BuiltinModel
from anyaccel_torch.module_state import submodules


class TrainingModes:
    """The training modes of all submodules of some modules.

    Args:
        modules: Modules whose modes are saved.
        as_is: Those of them whose submodules train in their current modes.
    """

    def __init__(self, modules: Iterable[nn.Module], as_is: Iterable[nn.Module] = ()) -> None:
        self._saved: dict[nn.Module, bool] = {}
        for module in modules:
            for part in submodules(module):
                self._saved[part] = part.training
        self._as_is = {module: [part for part in submodules(module) if part.training] for module in as_is}
        self._entered: set[nn.Module] = set()

    def enter(self, module: nn.Module, *, training: bool) -> None:
        """Switch a module to training or evaluation mode, if it is not in it.

        In training mode, this includes submodules that were in evaluation mode inside the module, unless the module's
        own `train` leaves them in it. Keras layers do not read modes: `layer.trainable = False` freezes them.
        """
        kept = self._as_is.get(module) if training else None
        if kept is not None:
            if not (kept and kept[0].training):  # the others are switched with it
                module.train(False)
                for part in kept:
                    part.training = True
        elif module.training is not training or (training and module not in self._entered):
            module.train(training)
            if training:
                self._entered.add(module)

    def restore(self) -> None:
        """Restore every submodule's mode without calling `train`, which users override."""
        for part, training in self._saved.items():
            part.training = training
        self._entered.clear()


class BufferSnapshot:
    """Copies of the buffers of some modules, and of Keras's states."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._states: list[tuple[Tensor, Tensor]] = []
        parts: dict[nn.Module, None] = {}
        for module in modules:
            parts.update(dict.fromkeys(submodules(module)))
            for state in keras.contents(module).states.values():
                self._states.append((state, state.detach().clone()))
        self._buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        for part in parts:
            for name, buffer in part.named_buffers(recurse=False):
                if not is_lazy(buffer):
                    self._buffers.append((part, name, buffer, buffer.detach().clone()))

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copies back; a buffer that the module has replaced becomes the same tensor again."""
        for part, name, buffer, copy in self._buffers:
            same_shape = buffer.shape == copy.shape
            setattr(part, name, buffer.copy_(copy) if same_shape else copy.clone())
        for state, copy in self._states:
            state.copy_(copy)


_CPU = torch.device("cpu")
"""Its generator is used by modules wherever they run."""


class RandomState:
    """States of torch's generators of the CPU and of some devices, and of Keras's `seed_states`."""

    def __init__(self, devices: Iterable[torch.device], seed_states: Sequence[nn.Parameter] = ()) -> None:
        self._saved: dict[torch.device, Tensor] = {}
        for device in {_CPU, *devices}:
            if device.type == "cpu":
                self._saved[device] = torch.get_rng_state()
            elif device.type != "meta":
                self._saved[device] = torch.get_device_module(device).get_rng_state(device)
        self._seeds = [(state, state.detach().clone()) for state in seed_states]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore every state."""
        for state, copy in self._seeds:
            state.copy_(copy)
        for device, saved in self._saved.items():
            _set_generator_state(device, saved)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the states in host memory, by the type of the device and its position among those of its type."""
        seeds = {f"keras/{i}": copy.cpu().numpy() for i, (_, copy) in enumerate(self._seeds)}
        return {**{name: self._saved[device].cpu().numpy() for name, device in self._names().items()}, **seeds}

    def load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the states that `to_arrays` gave for the same types of devices, and set them.

        Raises:
            StateError: they are of other devices, or of another kind of generator.
        """
        names, saved = self.to_arrays(), {name: np.asarray(array) for name, array in arrays.items()}
        differing = [name for name in {**names, **saved} if _form(names.get(name)) != _form(saved.get(name))]
        if differing:
            raise StateError(
                f"the state of random generators belongs to other devices: {', '.join(sorted(differing))} differ",
                available=", ".join(sorted(names)),
                hint="continue on devices of the same kinds",
            )
        for name, device in self._names().items():
            self._saved[device] = torch.from_numpy(saved[name].copy())
        states = (state for state, _ in self._seeds)
        self._seeds = [(state, torch.from_numpy(saved[f"keras/{i}"].copy())) for i, state in enumerate(states)]
        self.restore()

    def _names(self) -> dict[str, torch.device]:
        ordered = sorted(self._saved, key=lambda device: (device.type, device.index or 0))
        return {f"{device.type}/{i}": device for i, device in enumerate(ordered)}


def _form(array: np.ndarray | None) -> tuple[Any, ...] | None:
    return None if array is None else (array.shape, array.dtype)


def generator_devices() -> list[torch.device]:
    """Return the devices that are in use in this process and have a generator that `torch.manual_seed` seeds, but the
    CPU.
    """
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    if accelerator is None or module is None or not getattr(module, "is_initialized", lambda: True)():
        return []
    return [torch.device(accelerator.type, index) for index in range(module.device_count())]


@torch.no_grad()
def seed_generators(devices: Iterable[torch.device], key: int, seed_states: Sequence[nn.Parameter] = ()) -> None:
    """Seed the generators of the CPU and of `devices`, and Keras's `seed_states`, from a 64-bit key."""
    for i, state in enumerate(seed_states):
        state.copy_(torch.tensor([rng.key(key, "keras", i) % 2**31, 0], dtype=state.dtype))
    for device in {_CPU, *devices}:
        if device.type != "meta":
            _set_generator_state(device, torch.Generator(device).manual_seed(key).get_state())


class PlainAttributes:
    """The attributes of a module and its parts that are neither parameters, buffers nor submodules; hooks too.

    Modules that build themselves in their first call, by new parameters, buffers or submodules, stay as that left them.
    """

    def __init__(self, module: nn.Module) -> None:
        parts = submodules(module)
        self._module = module
        library = keras.library()
        self._builders = {  # whose first call registers parameters, buffers or submodules
            id(part) for part in parts if isinstance(part, (LazyModuleMixin, BuiltinModel)) or library.is_layer(part)
        }
        self._registered = self._all_registered()
        self._snapshot = AttributeSnapshot(parts, _plain_names, save_tensor)

    def restore(self) -> None:
        """Restore every attribute and its content."""
        if self._all_registered() == self._registered:
            self._snapshot.restore()
        else:
            self._snapshot.restore(unless=lambda part: self._has_built(id(part), part))

    def _all_registered(self) -> dict[int, tuple[Any, ...]]:
        """Return everything registered in each part, and in Keras layers' own registries, which are not parts."""
        found = dict.fromkeys(self._module.modules())
        for part in submodules(self._module):
            found.update({} if part in found else dict.fromkeys(part.modules()))
        return {id(part): self._registered_in(part) for part in found}

    def _has_built(self, before: int, part: nn.Module) -> bool:
        """Return whether a part, or one in it that does not build itself, has another class or other registrations now.

        This includes a list that has received layers, or a module that was replaced by another.
        """
        (*record_before, inner_before), (*record, inner) = self._registered[before], self._registered_in(part)
        if record != record_before or len(inner) != len(inner_before):
            return True
        by_id = {id(child): child for child in part.children()}
        return any(self._has_built(was, by_id[now]) for was, now in zip(inner_before, inner, strict=True))

    def _registered_in(self, part: nn.Module) -> tuple[Any, ...]:
        """Return what changes when a module builds itself: its class, its registrations, and the modules in it.

        Modules that build themselves are not included.
        """
        tables = (part._parameters, part._buffers, part._modules)  # noqa: SLF001
        names = [name for table in tables for name in table.keys()]  # noqa: SIM118 - iterating fails in TorchScript
        inner = [id(child) for child in part.children() if id(child) not in self._builders]
        return type(part), names, getattr(part, "built", None), inner


def _plain_names(part: nn.Module) -> list[str]:
    """Return names of plain attributes; of a Keras layer only the public ones, as it keeps its own records in the
    others.
    """
    names = [name for name in vars(part) if name not in _REGISTRIES]
    return [name for name in names if not name.startswith("_")] if keras.library().is_layer(part) else names


_REGISTRIES = frozenset(("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"))


def save_tensor(value: Any) -> Callable[[], None] | None:
    """Return a function that restores a tensor's values, for an `AttributeSnapshot`; parameters are saved elsewhere."""
    if not isinstance(value, Tensor):
        return None
    if isinstance(value, nn.Parameter) or is_lazy(value) or value.is_inference():  # the last have no version
        return lambda: None
    version, copy = value._version, value.detach().clone()  # noqa: SLF001

    def restore() -> None:
        if value._version != version:  # noqa: SLF001
            with torch.no_grad():
                value.copy_(copy)

    return restore


class TrialCalls:
    """Calls of a module; after each, its modes, attributes, buffers and random states are restored.

    Args:
        model: The module.
        device: Its device, or `meta`; by default that of its first parameter or buffer, otherwise the CPU.
        only_modes: Whether calls change nothing else.
    """

    def __init__(self, model: nn.Module, device: torch.device | None = None, *, only_modes: bool = False) -> None:
        if device is None:
            tensor = next(chain(model.parameters(), model.buffers()), None)
            device = torch.device("cpu") if tensor is None else tensor.device
        self.model, self.device, self._modes = model, device, TrainingModes([model])
        others = () if only_modes else (PlainAttributes(model), BufferSnapshot([model]), RandomState([device]))
        self._saved = (self._modes, *others)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the model is in evaluation mode.

        Raises:
            GraphError: it has no modes, as what `torch.export` gives.
        """
        try:
            try:
                self.model.eval()
            except NotImplementedError as error:
                raise GraphError(
                    f"{type(self.model).__name__} cannot change between training and evaluation mode: {error}",
                    hint="pass the original module; or, if both modes compute the same, set model.train = "
                    "model.eval = lambda *mode: model",
                ) from error
            yield
        finally:
            self._restore()

    @contextmanager
    def in_training(self, *, as_is: bool = False) -> Iterator[None]:
        """Put the model into the modes of a training step inside this context; `as_is`: into its current ones."""
        try:
            if not as_is:
                self._modes.enter(self.model, training=True)
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        for state in self._saved:
            state.restore()


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


class InputGuard:
    """Protects a segment's inputs, which others may read: modules that write to an input are given a copy.

    The first batch of each kind is copied entirely; torch's version counters then tell which inputs were written to.
    A kind is the mode together with the inputs that are present, as these decide which modules run.
    """

    def __init__(self, segment: Segment) -> None:
        self._label = segment.label
        self._names = tuple(segment.inputs)
        self._written: dict[tuple[bool, ...], set[int]] = {}

    @contextmanager
    def protect(self, inputs: Sequence[Any], *, training: bool) -> Iterator[list[Any]]:
        """Yield the inputs, copied if modules write to them; None stays None.

        Raises:
            PhaseError: at the end, a module has written to an input that it did not change in the first batch.
        """
        kind = (training, *(tensor is None for tensor in inputs))
        written = self._written.get(kind, set(range(len(inputs))))
        protected = [t.clone() if i in written and t is not None else t for i, t in enumerate(inputs)]
        before = [_version(tensor) for tensor in protected]
        yield protected
        changed = {i for i, tensor in enumerate(protected) if _version(tensor) != before[i]}
        if kind not in self._written:
            self._written[kind] = changed
        elif changed - written:
            name = self._names[min(changed - written)]
            raise PhaseError(
                f"a module of segment {self._label!r} has written to its input {name!r}, but did not do so in "
                "the first batch; other nodes may read that memory",
                hint="copy the input before writing to it: x = x.clone()",
            )


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version  # noqa: SLF001
