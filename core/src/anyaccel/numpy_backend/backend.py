"""NumpyBackend: the whole contract over NumPy, on the CPU and on simulated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.device_description import cpu_info
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.model_outputs import CODE_ERRORS, code_error
from anyaccel.adapter.state_check import check_state, state_names
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.adapter.step_profiler import ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers
from anyaccel.backend import AsyncCopy, Backend, Compute, DeviceInfo, Exchange, Memory, Program
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.errors import ENVIRONMENT_ERRORS, DeviceMismatchError, EstimatorError, MoveError, ShapeError
from anyaccel.host_memory import aligned_empty
from anyaccel.install_hints import foreign_module
from anyaccel.numpy_backend import transfers
from anyaccel.numpy_backend.array_creation import handle, scoped
from anyaccel.numpy_backend.builtin_models import SequentialCNN, SequentialMLP, TabularMLP
from anyaccel.numpy_backend.capabilities import (
    OWN_KINDS,
    NumpyMemory,
    NumpyMemoryFigures,
    NumpyProfiler,
    NumpyStepCosts,
    NumpyTransfers,
)
from anyaccel.numpy_backend.layers import BatchNorm, Conv2d, MaxPool2d
from anyaccel.numpy_backend.module import Module, output_specs
from anyaccel.numpy_backend.ops import NumpyOps, NumpyPrecision, NumpyProgram
from anyaccel.numpy_backend.sim_array import HOST, SimArray, download, upload
from anyaccel.numpy_backend.sim_device import SWITCH, missing, running
from anyaccel.precision import ComputesPrecision
from anyaccel.segment import OutputSpec, Path, Segment, TensorSpec, positional_outputs
from anyaccel.specs import Loss, Optimizer


class NumpyBackend(Backend, Exchange, Compute):
    """NumPy on `cpu:0`, and on `sim:0`, `sim:1`, ... where devices are simulated. Owns arrays and `Module`s."""

    framework = "numpy"
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "sim")
    import_roots: ClassVar[tuple[str, ...]] = ("numpy", "anyaccel")
    environment: ClassVar[tuple[str, ...]] = (SWITCH,)
    ops = NumpyOps()
    """What it computes with, which computes on the host for others, too."""
    capabilities: ClassVar[Capabilities] = {
        Memory: NumpyMemory,
        MemoryFigures: NumpyMemoryFigures,
        ComputesPrecision: NumpyPrecision,
        ObservesTransfers: NumpyTransfers,
        ProfilesSteps: NumpyProfiler,
        StepCosts: NumpyStepCosts,
        "anyaccel_distributed.DeviceReplicas": lazy("anyaccel_distributed:DeviceReplicas"),
    }
    parameter_groups = True
    weighs_losses = True

    # -- devices ---------------------------------------------------------------------------------------------------

    def devices(self) -> Sequence[Device]:
        """Return the CPU, then the simulated ones."""
        return [HOST, *(simulated.device for simulated in running())]

    def owns(self, obj: Any) -> bool:
        """Return whether it is an array, a NumPy scalar or a module."""
        return isinstance(obj, (np.ndarray, np.generic, Module))

    def device_of(self, obj: Any) -> Device | None:
        """Return the device of an array or of a module's values; of a module without values, where it was placed.

        Raises:
            DeviceMismatchError: a module's values are on several devices.
        """
        if isinstance(obj, Module):
            arrays = [*obj.parameters.values(), *obj.buffers.values()]
            devices = sorted({array.device if isinstance(array, SimArray) else HOST for array in arrays})
            if len(devices) > 1:
                raise DeviceMismatchError(
                    f"the values of a {type(obj).__name__} are on several devices",
                    available=", ".join(map(str, devices)),
                    hint="put them on one with anyaccel.place(module, device)",
                )
            return devices[0] if devices else obj.home
        if isinstance(obj, SimArray):
            return obj.device
        return HOST if isinstance(obj, (np.ndarray, np.generic)) else None

    def place(self, obj: Any, device: Device) -> Any:
        """Put an object on a device: a module is changed in place; arrays and trees of arrays are copied if
        necessary.
        """
        if isinstance(obj, Module):
            for values in (obj.parameters, obj.buffers):
                values.update({name: transfers.moved(array, device) for name, array in values.items()})
            obj.home = device
            return obj
        if isinstance(obj, dict):
            return {key: self.place(value, device) for key, value in obj.items()}
        if isinstance(obj, (list, tuple)):
            return getattr(obj, "_make", type(obj))(self.place(value, device) for value in obj)
        if isinstance(obj, (np.ndarray, np.generic)):
            return transfers.moved(obj, device)
        if obj is None or isinstance(obj, (bool, int, float, str)):
            return obj
        raise MoveError(f"numpy cannot place a {type(obj).__name__}", available="modules, arrays, and trees of arrays")

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Return the array on another device; `pinned` has no effect."""
        return transfers.moved(tensor, device)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Return a context that sets the device of `anyaccel.numpy_backend.array` and `zeros`; NumPy's functions have
        none.
        """
        return scoped(device)

    def device_string(self, device: Device) -> str:
        """Return `"cpu"`, NumPy's name for its only device; a simulated device has its own name."""
        return "cpu" if device.kind == "cpu" else str(device)

    def synchronize(self, device: Device) -> None:
        """NumPy computes synchronously; a simulated device counts the call."""
        on = handle(device)
        if on is not None:
            on.waited()

    def device_info(self, device: Device) -> DeviceInfo:
        """A simulated device has its own memory space."""
        if device.kind != "sim":
            return cpu_info()
        total = self.required(Memory).memory(device).total
        return DeviceInfo(f"simulated device {device.index}", memory_space=str(device), total_memory=total)

    def unavailable_reason(self, device: Device) -> str:
        """Return how to simulate more devices; why there is only one CPU."""
        if device in self.devices():
            return ""
        if device.kind == "sim":
            return missing(device)
        return "numpy counts all cores as cpu:0" if device.kind == "cpu" else ""

    # -- exchange --------------------------------------------------------------------------------------------------

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Return a copy."""
        return transfers.from_host(array, device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return the array itself on the CPU; elsewhere a copy."""
        return transfers.from_host_owned(array, device) if device.kind in OWN_KINDS else self.from_host(array, device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Allocate aligned host memory; none is pinned."""
        return aligned_empty(shape, dtype)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Copy an array: to the CPU immediately; to a simulated device as late as a real copy may end."""
        return (
            transfers.copy_async(array, device)
            if device.kind in OWN_KINDS
            else AsyncCopy(self.from_host(array, device))
        )

    def to_host(self, tensor: Any) -> np.ndarray:
        """Return a copy from a simulated device; on the CPU, the array itself."""
        return download(tensor) if isinstance(tensor, SimArray) else np.asarray(tensor)

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Without a copy on the CPU, and read-only."""
        return self.move(foreign, device) if self.owns(foreign) else transfers.from_dlpack(foreign, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Return a view without an order, a copy with one."""
        return transfers.gather_rows(column, start, stop, order)

    # -- compute ---------------------------------------------------------------------------------------------------

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """Build the module if needed, and run it on a batch of two samples of zeros."""
        if not isinstance(model, Module):
            raise ShapeError(
                f"a {type(model).__name__} is not a NumPy model: its gradients are unknown",
                hint="subclass anyaccel.numpy_backend.Module, and implement pullback",
            )
        foreign = next((spec for spec in inputs if not _is_numpy_dtype(spec.dtype)), None)
        if foreign is not None:
            raise ShapeError(
                f"{type(model).__name__} does not accept {foreign}: NumPy has no {foreign.dtype}",
                hint="pass float32, from a model with float32 outputs or a column cast to float32",
            )
        try:
            if not model.is_built:
                model.build(inputs, seed)
            snapshot = AttributeSnapshot([model], vars)
            try:
                return output_specs(model, inputs)
            finally:
                snapshot.restore()
        except (ShapeError, EstimatorError, *ENVIRONMENT_ERRORS):
            raise
        except CODE_ERRORS as error:
            raise code_error(type(model).__name__, error, str(error)) from error
        except Exception as error:  # a user's module may raise anything
            raise ShapeError(
                f"{type(model).__name__} does not accept {', '.join(map(str, inputs))}: {error}",
                cause=f"parameters {_shapes(model)}" if model.parameters else "",
                hint=model.input_hint,
            ) from error

    def infer_training(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()
    ) -> tuple[OutputSpec, ...]:
        """Run the module on a batch of two samples of zeros, in training mode."""
        if not isinstance(model, Module):
            return ()
        snapshot = AttributeSnapshot([model], vars)
        try:
            return positional_outputs(output_specs(model, inputs, train=True))
        except (ShapeError, *ENVIRONMENT_ERRORS):
            raise
        except Exception:  # a user's module may raise anything; the first step has the right error
            return ()
        finally:
            snapshot.restore()

    def dtype_of(self, model: Any) -> str | None:
        """Return `Module.dtype`, otherwise the dtype of its first floating parameter."""
        if model.dtype is not None:
            return str(model.dtype)
        return next((array.dtype.name for array in model.parameters.values() if array.dtype.kind == "f"), None)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the parameters, in the module's order."""
        return {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in model.parameters.items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()) -> bool:
        """Return False: imported memory is read-only."""
        return False

    def batch_coupling(self, model: Any) -> str:
        """Return `"BatchNorm"` if the model has one; nothing is known of other modules."""
        if isinstance(model, BatchNorm):
            return "BatchNorm"
        values = vars(model).values()
        parts = [part for value in values for part in (value if isinstance(value, (tuple, list)) else [value])]
        return next(filter(None, (self.batch_coupling(part) for part in parts if isinstance(part, Module))), "")

    def data_format(self, model: Any) -> tuple[str, str]:
        """Return channels first for image layers; unknown for others."""
        if isinstance(model, SequentialCNN):
            return "channels_first", ""
        return ("channels_first",) * 2 if isinstance(model, (Conv2d, MaxPool2d)) else ("", "")

    def build(self, segment: Segment) -> Program:
        """Return a `NumpyProgram`."""
        return NumpyProgram(segment, self.ops)

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Return copies of the arrays in host memory."""
        return {name: np.array(array) for name, array in self.live_state(model).items()}

    def live_state(self, model: Any) -> dict[str, np.ndarray]:
        """Return read-only views of the arrays; of simulated devices copies."""
        named = state_names(model.parameters, model.buffers)
        views = {name: download(a) if isinstance(a, SimArray) else np.asarray(a).view() for name, a in named.items()}
        for view in views.values():
            view.setflags(write=False)
        return views

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Load all arrays, or none if anything does not match."""
        current = state_names(model.parameters, model.buffers)
        check_state(state, {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in current.items()})
        for kind, values in (("parameters", model.parameters), ("buffers", model.buffers)):
            for name, array in values.items():
                loaded = np.array(state[f"{kind}/{name}"], array.dtype)
                values[name] = upload(loaded, array.on) if isinstance(array, SimArray) else loaded

    def models(self) -> Mapping[str, type]:
        """Return SequentialMLP, SequentialCNN and TabularMLP."""
        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN, "TabularMLP": TabularMLP}

    def unsupported_reason(self, spec: Optimizer | Loss) -> str:
        """Return the reason for optimizers other than the named ones, and for losses of another framework."""
        if isinstance(spec, Optimizer):
            return "numpy supports named optimizers only" if spec.own is not None else ""
        module = foreign_module(spec.own, ())
        return f"{spec.name} comes from {module}" if module else ""


def _is_numpy_dtype(dtype: str) -> bool:
    """Whether a dtype is one of NumPy's own: dtypes that other packages register, such as bfloat16, do not count."""
    try:
        return np.dtype(dtype).kind in "biufc"
    except TypeError:
        return False


def _shapes(model: Module) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in model.parameters.items())
