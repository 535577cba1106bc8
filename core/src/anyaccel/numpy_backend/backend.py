"""NumpyBackend: the whole contract over NumPy, on the CPU and on simulated devices."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.backend import AsyncCopy, Backend, Compute, DeviceInfo, Exchange, Memory, MemoryInfo, Program
from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, MoveError
from anyaccel.host_memory import aligned_empty, host_memory
from anyaccel.install_hints import HINTS
from anyaccel.numpy_backend import model_state
from anyaccel.numpy_backend.array_creation import handle, scoped
from anyaccel.numpy_backend.builtin_models import SequentialCNN, SequentialMLP
from anyaccel.numpy_backend.convolution_layers import Conv2d, MaxPool2d
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import HOST, SimArray, download
from anyaccel.numpy_backend.sim_device import missing, running
from anyaccel.numpy_backend.transfers import adopted, moved, rows, sent, taken, uploaded
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

_OURS = ("cpu", "sim")  # what derives from this backend may serve other kinds, by `from_host` of its own


class NumpyBackend(Backend, Exchange, Compute, Memory):
    """NumPy on `cpu:0`, and on `sim:0`, `sim:1`, ... where devices are simulated. Owns arrays and `Module`s."""

    framework = "numpy"
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "sim")
    import_roots: ClassVar[tuple[str, ...]] = ("numpy", "anyaccel")

    # -- devices ---------------------------------------------------------------------------------------------------

    def devices(self) -> Sequence[Device]:
        """The CPU, then the simulated ones."""
        return [HOST, *(simulated.device for simulated in running())]

    def owns(self, obj: Any) -> bool:
        """Arrays, NumPy's scalars and modules; nothing else of NumPy, and nothing else of anyaccel."""
        return isinstance(obj, (np.ndarray, np.generic, Module))

    def device_of(self, obj: Any) -> Device | None:
        """Where an array is, or the values of a module; where one without values was placed.

        Raises:
            DeviceMismatchError: a module's values are on several devices.
        """
        if isinstance(obj, Module):
            return _common(obj)
        if isinstance(obj, SimArray):
            return obj.device
        return HOST if isinstance(obj, (np.ndarray, np.generic)) else None

    def place(self, obj: Any, device: Device) -> Any:
        """A module is changed and returned; of arrays and trees of them, what is elsewhere is made anew."""
        if isinstance(obj, Module):
            for values in (obj.parameters, obj.buffers):
                values.update({name: moved(array, device) for name, array in values.items()})
            obj.home = device
            return obj
        if isinstance(obj, dict):
            return {key: self.place(value, device) for key, value in obj.items()}
        if isinstance(obj, (list, tuple)):
            return getattr(obj, "_make", type(obj))(self.place(value, device) for value in obj)
        if isinstance(obj, (np.ndarray, np.generic)):
            return moved(obj, device)
        if obj is None or isinstance(obj, (bool, int, float, str)):
            return obj
        raise MoveError(
            f"numpy cannot place a {type(obj).__name__}", available="it places modules, and trees of arrays"
        )

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """An array elsewhere; `pinned` has no effect."""
        return moved(tensor, device)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """`anyaccel.numpy_backend.array` and `zeros` make arrays there; NumPy's own functions know no device."""
        return scoped(device)

    def device_string(self, device: Device) -> str:
        """NumPy calls its only device `"cpu"`; simulated ones go by their own name."""
        return "cpu" if device.kind == "cpu" else str(device)

    def synchronize(self, device: Device) -> None:
        """Everything is done already; on a simulated device the wait is counted."""
        on = handle(device)
        if on is not None:
            on.waited()

    def device_info(self, device: Device) -> DeviceInfo:
        """A simulated device computes from memory of its own."""
        total = self.memory(device).total
        if device.kind == "sim":
            return DeviceInfo(f"simulated device {device.index}", memory_space=str(device), total_memory=total)
        name = platform.processor() or platform.machine() or str(device)
        return DeviceInfo(name, memory_space="host", total_memory=total)

    def unavailable_reason(self, device: Device) -> str:
        """How to simulate more devices; that there is one CPU."""
        if device in self.devices():
            return ""
        if device.kind == "sim":
            return missing(device)
        return "numpy counts all cores as cpu:0" if device.kind == "cpu" else ""

    # -- exchange --------------------------------------------------------------------------------------------------

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """A copy."""
        return uploaded(array, device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """On the CPU the array itself."""
        return taken(array, device) if device.kind in _OURS else self.from_host(array, device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Any memory is as good."""
        return aligned_empty(shape, dtype)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """On the CPU copied at once; to a simulated device as late as a real one may."""
        return sent(array, device) if device.kind in _OURS else AsyncCopy(self.from_host(array, device))

    def to_host(self, tensor: Any) -> np.ndarray:
        """A copy from a simulated device; on the CPU the array itself."""
        return download(tensor) if isinstance(tensor, SimArray) else np.asarray(tensor)

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """On the CPU without a copy, and read-only."""
        return moved(foreign, device) if self.owns(foreign) else adopted(foreign, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """A view without an order, a copy with one."""
        return rows(column, start, stop, order)

    # -- compute ---------------------------------------------------------------------------------------------------

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """Build the module if it is not, and let it compute two samples of zeros."""
        return model_state.infer(model, inputs, seed)

    def dtype_of(self, model: Any) -> str | None:
        """What the module says, else the dtype of its first floating parameter."""
        return model_state.dtype_of(model)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """In the order in which the module has them."""
        return {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in model.parameters.items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """Never: what other frameworks hand over is read-only here."""
        return False

    def batch_coupling(self, model: Any) -> str:
        """BatchNorm; nothing is known of what other modules do with a batch."""
        return model_state.mixes(model)

    def data_format(self, model: Any) -> tuple[str, str]:
        """Channels first for the layers for images; nothing is said of others."""
        if isinstance(model, SequentialCNN):
            return "channels_first", ""
        return ("channels_first",) * 2 if isinstance(model, (Conv2d, MaxPool2d)) else ("", "")

    def build(self, segment: Segment) -> Program:
        """The adapter's program."""
        return ArrayProgram(segment, NumpyOps())

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Copies, from simulated devices too."""
        return model_state.state(model)

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """All of it, or none if anything does not fit."""
        model_state.load_state(model, state)

    def models(self) -> Mapping[str, type]:
        """SequentialMLP and SequentialCNN."""
        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN}

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """Optimizers by name only; any callable as a loss, which must give its gradients."""
        if isinstance(recipe, Optimizer) and recipe.own is not None:
            return "numpy has the named optimizers only"
        if isinstance(recipe, Loss) and recipe.own is not None:
            own = recipe.own if isinstance(recipe.own, type) else type(recipe.own)
            foreign = {str(base.__module__).partition(".")[0] for base in own.__mro__} & set(HINTS)
            return f"it is of {', '.join(sorted(foreign))}" if foreign else ""
        return ""

    # -- memory ----------------------------------------------------------------------------------------------------

    def memory(self, device: Device) -> MemoryInfo:
        """Of a simulated device what was counted (0 where it has no limit); of the CPU what the system says."""
        if device.kind not in _OURS:
            return MemoryInfo(0, 0, 0, 0)
        on = handle(device)
        if on is None:
            total, free = host_memory()
            return MemoryInfo(total, free, total - free, 0)
        total = on.capacity or 0
        return MemoryInfo(total, max(total - on.used, 0), on.used, on.peak)

    def release_memory(self, device: Device) -> None:
        """Nothing is cached."""


def _common(module: Module) -> Device | None:
    arrays = [*module.parameters.values(), *module.buffers.values()]
    found = sorted({array.device if isinstance(array, SimArray) else HOST for array in arrays})
    if len(found) > 1:
        raise DeviceMismatchError(
            f"the values of a {type(module).__name__} are on several devices",
            available=", ".join(map(str, found)),
            hint="put them on one with anyaccel.place(module, device)",
        )
    return found[0] if found else module.home
