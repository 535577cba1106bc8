"""The contract: what a plugin offers to make one framework compute on one or more kinds of device.

`Backend` is the part that everybody writes. The capabilities (`Exchange`, `Compute`, `Memory`) are further base
classes; a backend that derives from one declares it, and the conformance kit then tests it. Methods that come later
arrive with a default, so that an older plugin keeps working.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyaccel.device import Device
from anyaccel.program import CompileEstimate as CompileEstimate
from anyaccel.program import MultiStepProgram as MultiStepProgram
from anyaccel.program import Program as Program
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is: its product name, vendor (lower case), stable identity and the memory it computes from.

    `identity` is a UUID as the vendor's own tools write it (`GPU-...` for NVIDIA) or a PCI address, `""` where there is
    none. Two devices with an equal, non-empty `memory_space`
    can share memory without a copy. `total_memory` is in bytes, 0 where unknown.
    """

    name: str
    vendor: str = ""
    identity: str = ""
    memory_space: str = ""
    total_memory: int = 0


class Backend(ABC):
    """One framework on one or more kinds of device. Objects are made by a plugin's `backends()` hook.

    Making an instance must not import the framework; methods may.
    """

    framework: ClassVar[str]
    """Identifier of the framework, lower case."""
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of device it serves."""
    import_roots: ClassVar[tuple[str, ...]]
    """Top-level modules whose classes it owns."""
    environment: ClassVar[tuple[str, ...]] = ()
    """Environment variables that decide which devices the framework sees or how it uses them; `anyaccel env` tells."""
    fork_safe: ClassVar[bool] = True
    """Whether a process that has used the framework may be forked: False where its runtime keeps threads of its own."""

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """Devices usable now, best first, without duplicates, of `kinds` only. Never raises, initialises nothing."""

    @abstractmethod
    def device_of(self, obj: Any) -> Device | None:
        """Where a tensor or a placed object is; None for an object that is nowhere (it holds no tensor)."""

    @abstractmethod
    def place(self, obj: Any, device: Device) -> Any:
        """Put an object with state (a model, an optimizer, a tree of tensors) on a device; **use what is returned**.

        A second call changes nothing. Optimizer state goes along, scalars that must stay on the host stay there.
        """

    @abstractmethod
    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """A tensor of the same values and dtype on `device`; the same object if it is there already.

        Args:
            tensor: a tensor of this framework.
            device: where it shall be.
            pinned: a wish for a copy from page-locked memory; has no effect where it cannot be had or is not safe.

        Raises:
            MoveError: the device cannot hold this dtype.
            OutOfMemoryError: no room.
        """

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """New tensors made inside land on `device`; what was before is restored, after an error too."""

    @abstractmethod
    def device_string(self, device: Device) -> str:
        """The framework's own name for the device, such as `"cuda:0"` for gpu:0."""

    def owns(self, obj: Any) -> bool:
        """Whether an object is this framework's: one of its class's bases comes from a module of `roots`."""
        return any(str(base.__module__).partition(".")[0] in self.import_roots for base in type(obj).__mro__)

    def synchronize(self, device: Device) -> None:
        """Wait until everything asked of `device` is done."""

    def device_info(self, device: Device) -> DeviceInfo:
        """What the device is; the default knows its name only, and that a CPU computes from host memory."""
        return DeviceInfo(str(device), memory_space="host" if device.kind == "cpu" else "")

    def unavailable_reason(self, device: Device) -> str:
        """Why `device` is not among `devices()`; `""` where nothing is known."""
        return ""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """A tensor that is on its way to a device.

    `arrive()` is called once by the thread that computes, before the first use: what is asked of the device from then
    on waits for the copy; the caller does not. `read()` waits until the array that was sent has been read and may be
    overwritten; it may be called by another thread, and more than once.
    """

    tensor: Any
    wait: Callable[[], None] = _nothing
    source_reusable: Callable[[], None] = _nothing


class Exchange(ABC):
    """Capability: tensors from and to host memory, and from other frameworks."""

    index_dtype: ClassVar[str] = "int64"
    """Dtype of the orders and class indices that it is given, `"int64"` or `"int32"`."""

    @abstractmethod
    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """A tensor on `device` that owns its memory: `array` may be changed or freed at once. Keeps dtype and shape.

        Raises:
            MoveError: the framework or the device lacks this dtype.
            OutOfMemoryError: no room.
        """

    @abstractmethod
    def to_host(self, tensor: Any) -> np.ndarray:
        """The values in host memory, as NumPy; waits for them. May share memory with a tensor on the CPU.

        Raises:
            MoveError: NumPy lacks this dtype.
        """

    @abstractmethod
    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """This framework's tensor on `device` from another framework's, through DLPack: no copy in one memory space.

        Whoever asks does not write to the result, which may be the other framework's memory; nor does the other.
        Keeps dtype and shape, and takes any strides.

        Raises:
            MoveError: the foreign tensor cannot be taken over.
        """

    @abstractmethod
    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Rows of a resident column, on its device: `column[start:stop]`, or `column[order[start:stop]]`.

        `order` is a tensor [n] of `index_dtype` on the same device. The result is never waited for.
        """

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """As `from_host`, of an array that is given away: nobody else reads or writes it from now on.

        A framework that can compute from this memory needs no copy. The default makes one.
        """
        return self.from_host(array, device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Host memory of any content from which `send` copies to `device` best: page-locked, where that is faster."""
        return np.empty(shape, dtype)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Begin to copy an array (of `buffer`, or a part of one) to `device`, beside what is computed there.

        May be called from a thread of its own. The default copies at once.

        Raises:
            MoveError: the framework or the device lacks this dtype.
            OutOfMemoryError: no room.
        """
        return AsyncCopy(self.from_host(array, device))

    def is_ready(self, tensor: Any) -> bool:
        """Whether a tensor's values are there by now; asks, and does not wait.

        For frameworks that give back what is still being computed. The default says so of every tensor.
        """
        return True

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Many device scalars in host memory at once, float64 [n]; waits for them."""
        return np.array([float(self.to_host(value)) for value in values], dtype=np.float64)


class Compute(ABC):
    """Capability: shapes of models, and training and evaluating segments."""

    def wrap(self, model: Any) -> Any:
        """What a node shall hold for `model`: the model itself, or an object that can hold its values too.

        Asked once when a graph is built; a second call with what it gave changes nothing. For models that are
        functions only (their values live elsewhere), which could not receive what was learned. The default gives the
        model.
        """
        return model

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """Whether a built model may write to its inputs; asked of those that take values of another framework.

        True, the default, lets the plan copy such a value on its device instead of sharing memory.
        """
        return True

    def batch_coupling(self, model: Any) -> str:
        """Why an output row of a model in training depends on other rows of its batch (`"BatchNorm"`), `""` if not.

        A batch of such a model cannot be computed in parts with the same result. The default does not know of any.
        """
        return ""

    def data_format(self, model: Any) -> tuple[str, str]:
        """The order of axes that a model assumes of its inputs, and that of its outputs.

        `"channels_first"` or `"channels_last"` where it is known from layers such as convolutions; `""`, the default,
        where it is not, or no longer an image.
        """
        return "", ""

    @abstractmethod
    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """What `model` gives for inputs of these specifications; builds what is still unbuilt, weights from `seed`.

        Raises:
            ShapeError: the model does not take these inputs; carries the framework's own words.
        """

    @abstractmethod
    def dtype_of(self, model: Any) -> str | None:
        """Dtype of the floating inputs that the model wants (that of its parameters); None where it has no wish."""

    @abstractmethod
    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Name, whole shape and dtype of every parameter of a built model."""

    @abstractmethod
    def build(self, segment: Segment) -> Program:
        """Make a segment ready to run. Its models are placed already.

        Raises:
            SpecError: an optimizer or loss that this framework lacks.
        """

    @abstractmethod
    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Copies of the model's values in host memory, named `parameters/NAME` and `buffers/NAME`."""

    @abstractmethod
    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Write back what `state` gave, where the model is now.

        Raises:
            StateError: names, shapes or dtypes differ.
        """

    def models(self) -> Mapping[str, type]:
        """Named models that a configuration may ask for; each has `get_config()` and takes it as keywords."""
        return {}

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """Why this backend cannot build a recipe; `""` if it can. The default takes names and its own classes.

        A class of another framework is refused here, or with a SpecError when it is built.
        """
        own = recipe.own
        if own is None or (isinstance(recipe, Loss) and not isinstance(own, type) and not hasattr(own, "parameters")):
            return ""
        modules = _modules_of(own)
        roots = self.import_roots if isinstance(self, Backend) else ()
        if any(module.partition(".")[0] in roots for module in modules):
            return ""
        return f"{recipe.name} comes from {modules[0]}"


def _modules_of(own: Any) -> list[str]:
    """The modules that a class, or an object's class, and its bases come from; a function's own first."""
    own = own.func if isinstance(own, functools.partial) else own
    bases = (own if isinstance(own, type) else type(own)).__mro__
    mine = [str(own.__module__)] if getattr(own, "__module__", None) else []
    return [*mine, *(str(base.__module__) for base in bases)]


class ComputingBackend(Backend, Exchange, Compute):
    """A backend with all that a graph needs. For annotations: a backend derives from the parts, not from this."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory; 0 where the framework does not say. `peak` is the most that was used at once."""

    total: int
    free: int
    used: int
    peak: int


class Memory(ABC):
    """Capability: how full a device is, and giving back what is only cached."""

    @abstractmethod
    def memory(self, device: Device) -> MemoryInfo:
        """Figures of now."""

    def share(self, device: Device, fraction: float) -> str:
        """Let other frameworks have memory of a device too; asked before anything is placed there.

        A framework that takes memory as it needs it has nothing to do; one that takes (nearly) all at once is to take
        as it needs, or at most `fraction` of the whole. What the user has set stays.

        Returns:
            `""`, or why that cannot be any more, with the remedy: it was initialised before.
        """
        return ""

    @abstractmethod
    def release_memory(self, device: Device) -> None:
        """Give cached memory back to the device; tensors that are in use stay."""


CAPABILITIES: dict[str, type] = {"exchange": Exchange, "compute": Compute, "memory": Memory}


def capabilities(backend: Backend) -> tuple[str, ...]:
    """Names of the capabilities that a backend declares."""
    return tuple(name for name, cls in CAPABILITIES.items() if isinstance(backend, cls))
