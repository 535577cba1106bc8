"""The plugin contract: what a plugin implements so that a framework computes on one or more kinds of device.

Every plugin implements `Backend`. The capabilities (`Exchange`, `Compute`, `Memory`) are further base classes; a
backend declares one by deriving from it, and the conformance kit then tests it. What was added later has a default.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

import numpy as np

from anyaccel.capability import Capabilities as Capabilities
from anyaccel.capability import Capability as Capability
from anyaccel.capability import capability_name
from anyaccel.device import Device
from anyaccel.distributions import CAPABILITIES as BROUGHT
from anyaccel.distributions import loaded, named
from anyaccel.errors import CapabilityError, PluginError
from anyaccel.program import CompileEstimate as CompileEstimate
from anyaccel.program import MultiStepProgram as MultiStepProgram
from anyaccel.program import Program as Program
from anyaccel.segment import OutputSpec, Path, Segment, TensorSpec, positional_outputs
from anyaccel.specs import Loss, LossTargets, Optimizer


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device's product name, vendor (lower case), identity, memory space, and total memory in bytes (0 if unknown).

    `identity` is a UUID as the vendor's tools write it (`GPU-...` for NVIDIA) or a PCI address, `""` if there is none.
    Devices with an equal, non-empty `memory_space` share memory by DLPack; `"host"` is that of NumPy's arrays.
    """

    name: str
    vendor: str = ""
    identity: str = ""
    memory_space: str = ""
    total_memory: int = 0


Kind = TypeVar("Kind")


def _derives(key: type[Any] | str, kind: type[Any]) -> bool:
    """Whether a key of `capabilities` names a class derived from one; a package that has none of it is not imported."""
    if isinstance(key, str):
        package, _, name = key.partition(".")
        if package != kind.__module__.partition(".")[0]:
            return False
        key = getattr(sys.modules[package], name)
    return isinstance(key, type) and issubclass(key, kind)


class Backend(ABC):
    """One framework on one or more kinds of device. A plugin's `backends()` hook returns the instances.

    Creating an instance must not import the framework; methods may.
    """

    framework: ClassVar[str]
    """Identifier of the framework, lower case."""
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of device it computes on."""
    import_roots: ClassVar[tuple[str, ...]]
    """Top-level modules whose classes it owns."""
    environment: ClassVar[tuple[str, ...]] = ()
    """Environment variables that decide how the framework sees and uses devices; `anyaccel env` shows them."""
    fork_safe: ClassVar[bool] = True
    """Whether a process that has used the framework may be forked: False if its runtime has threads."""
    capabilities: ClassVar[Capabilities] = {}
    """Capability classes (`Memory`), each with what makes the object from the backend: a class derived from it.

    A class of a package that need not be installed is named by text, `"PACKAGE.CLASS"`. A derived
    backend inherits them, or has others: `{**TorchBackend.capabilities, Memory: ChipMemory}`.
    """

    @final
    def capability(self, kind: type[Kind]) -> Kind | None:
        """The object that implements a capability for this backend, always the same one; None without it.

        The backend's own comes first, then one that another plugin brings by an entry point of the group
        `anyaccel.capabilities`. Not for steps: ask once, when something is built.

        Raises:
            PluginError: two other plugins bring it, or the one that does is broken.
        """
        made: dict[type[Any] | str, Any] = self.__dict__.setdefault("_made_capabilities", {})
        if kind not in made:
            if isinstance(self, kind):
                return self
            name = capability_name(kind)
            of_kind = [key for key in self.capabilities if key == name or _derives(key, kind)]
            declared = of_kind[-1] if of_kind else None  # a derived backend adds its own behind those it has
            if declared is None:
                made.setdefault(kind, self._brought(kind))
            else:
                made.setdefault(
                    kind, made.get(declared) or made.setdefault(declared, self.capabilities[declared](self))
                )
        found: Kind = made[kind]
        return found

    def _brought(self, kind: type[Any]) -> Any:
        """The capability that another plugin brings by an entry point; None where none does."""
        name = f"{self.framework}.{capability_name(kind)}"
        entry = named(BROUGHT, name)
        brought = None if entry is None else loaded(entry)(self)
        if entry is not None and brought is not None and not isinstance(brought, kind):
            problem = f"the entry point {name} gives {brought!r:.200}, which is no {kind.__name__}"
            raise PluginError(problem, hint=f"update or uninstall {entry.value.partition('.')[0]}")
        return brought

    @final
    def required(self, kind: type[Kind]) -> Kind:
        """As `capability`, where the caller relies on it.

        Raises:
            CapabilityError: it is not there.
        """
        made = self.capability(kind)
        if made is None:
            raise CapabilityError(f"the plugin of {self.framework} lacks the capability {kind.__name__}")
        return made

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """Usable devices of `kinds`, best first, without duplicates. Never raises and initialises nothing."""

    @abstractmethod
    def device_of(self, obj: Any) -> Device | None:
        """The device of a tensor or placed object; None for an object that holds no tensor."""

    @abstractmethod
    def place(self, obj: Any, device: Device) -> Any:
        """Put an object with state (a model, an optimizer, a tree of tensors) on a device; **use the result**.

        A second call changes nothing. Optimizer state moves along, except scalars that must stay on the host.
        """

    @abstractmethod
    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """A tensor of the same values and dtype on `device`; the same object if it is there already.

        Args:
            tensor: a tensor of this framework.
            device: the target.
            pinned: copy from pinned memory; has no effect where that is not available or not safe.

        Raises:
            MoveError: the device does not support this dtype.
            OutOfMemoryError: not enough memory.
        """

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """A context in which new tensors are created on `device`; the previous default is restored on exit."""

    @abstractmethod
    def device_string(self, device: Device) -> str:
        """The framework's own name for the device, such as `"cuda:0"` for gpu:0."""

    def native_device(self, device: Device) -> Any:
        """The framework's own device object, which plans carry; must not initialise it. By default `device_string`."""
        return self.device_string(device)

    def thread_rng(self, key: int | None) -> AbstractContextManager[Any]:
        """A context, entered often: this thread draws from `key` (None: one of the global state); `draws` counts.

        `passed` says whether a global generator was used all the same, as by code that seeds it.
        """
        return nullcontext()

    def global_rng(self, key: int) -> AbstractContextManager[Any]:
        """A context, entered often: global generators start from `key` and are then what they were before.

        The next time they go on where it was left. Unlike `thread_rng` it holds for all threads, and for code that
        seeds; only the thread that trains enters it. `draws` counts how often it was left with another state.
        """
        return nullcontext()

    def watch_rng(self) -> AbstractContextManager[Any]:
        """A context whose `passed` says afterwards whether `thread_rng` would have been passed by."""
        return nullcontext()

    def generator_state(self, generator: Any = None) -> np.ndarray | None:
        """The state of a generator of this framework, or of the global one of the host; None of anything else."""
        return None

    def set_generator_state(self, state: np.ndarray, generator: Any = None) -> None:
        """Set what `generator_state` gave."""

    def owns(self, obj: Any) -> bool:
        """Whether any object is this framework's, by default as `import_roots` says; imports and changes nothing."""
        return any(str(base.__module__).partition(".")[0] in self.import_roots for base in type(obj).__mro__)

    def synchronize(self, device: Device) -> None:
        """Wait until all work on `device` is done."""

    def device_info(self, device: Device) -> DeviceInfo:
        """What the device is; the default knows its name and promises no shared memory, as that needs DLPack."""
        return DeviceInfo(str(device))

    def unavailable_reason(self, device: Device) -> str:
        """Why `device` is not in `devices()`; `""` if unknown."""
        return ""


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """A tensor whose copy to a device is in progress.

    The computing thread calls `wait` once before the first use: later work on the device waits for the copy, the caller
    does not. `source_reusable` blocks until the source array may be overwritten; any thread may call it, repeatedly.
    """

    tensor: Any
    wait: Callable[[], None] = lambda: None
    source_reusable: Callable[[], None] = lambda: None


class Exchange(ABC):
    """Capability: tensors from and to host memory, and from other frameworks."""

    index_dtype: ClassVar[str] = "int64"
    """Dtype of row orders and class indices, `"int64"` or `"int32"`."""

    def loaded_dtype(self, dtype: str) -> str:
        """The dtype in which integers of `dtype` are loaded: another one where the backend lacks it."""
        return dtype

    @abstractmethod
    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """A tensor on `device` with memory of its own, so that `array` may be changed at once. Keeps dtype and shape.

        Raises:
            MoveError: the framework or the device does not support this dtype.
            OutOfMemoryError: not enough memory.
        """

    @abstractmethod
    def to_host(self, tensor: Any) -> np.ndarray:
        """The values as a NumPy array; blocks until they are there. May share memory with a tensor on the CPU.

        Raises:
            MoveError: NumPy does not support this dtype.
        """

    @abstractmethod
    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """A tensor on `device` from another framework's tensor through DLPack; no copy within one memory space.

        The two may share memory, so neither side writes to it. Keeps dtype and shape, and accepts any strides.

        Raises:
            MoveError: the foreign tensor cannot be imported.
        """

    @abstractmethod
    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Rows of a resident column, on its device: `column[start:stop]`, or `column[order[start:stop]]`.

        `order` is a tensor [n] of `index_dtype` on the same device. Does not wait for the result.
        """

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """As `from_host`, of an array that the caller gives up: nobody else reads or writes it from now on.

        A framework that can compute from this memory need not copy. The default copies.
        """
        return self.from_host(array, device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Uninitialised host memory from which `copy_async` is fastest: pinned memory, if that helps."""
        return np.empty(shape, dtype)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Start to copy an array (from `staging_buffer`, or a part of one) to `device` while it computes.

        May be called from another thread. The default copies synchronously.

        Raises:
            MoveError: the framework or the device does not support this dtype.
            OutOfMemoryError: not enough memory.
        """
        return AsyncCopy(self.from_host(array, device))

    def is_ready(self, tensor: Any) -> bool:
        """Whether a tensor's values are computed by now, without waiting; the default says yes."""
        return True

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Device scalars as a float64 array [n] in host memory; blocks until they are there."""
        return np.array([float(self.to_host(value)) for value in values], dtype=np.float64)


class Compute(ABC):
    """Capability: shapes of models, and training and evaluating segments."""

    calls_by_keyword: ClassVar[bool] = False
    """Whether programs and `infer_outputs` heed `Operation.arguments` and `Operation.results`."""
    weighs_losses: ClassVar[bool] = False
    """Whether named losses have `Loss.kwargs`, weights (see `LossTerm`), and positions beside the batch."""
    keeps_modes = False
    """Whether `Operation.modes="as_is"` is supported: layers have training modes of their own, which last."""
    custom_steps: ClassVar[bool] = False
    """Whether programs have `custom_step`, which runs a training step of the user's own."""
    parameter_groups: ClassVar[bool] = False
    """Whether programs heed `Optimizer.groups`."""

    def wrap(self, model: Any) -> Any:
        """What a graph node holds for `model`: the model, or an object that also holds its parameters.

        Called when a graph is built; wrapping a wrapped model changes nothing. For models that are functions without
        parameters of their own, which could not receive what was learned. The default gives the model.
        """
        return model

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()) -> bool:
        """Whether a built model may write to its inputs; called for models fed by another framework.

        If True, the default, the plan copies such a value on its device instead of sharing memory. `arguments` are as
        in `Operation`, given where a backend `calls_by_keyword`.
        """
        return True

    def batch_coupling(self, model: Any) -> str:
        """What couples the rows of a batch in training (`"BatchNorm"`), so that it cannot be split; `""`: nothing."""
        return ""

    def untrainable_reason(self, model: Any) -> str:
        """What training would leave out of a model, such as a method of its own; `""`, the default: nothing."""
        return ""

    def loss_targets(self, loss: Loss) -> LossTargets | None:
        """What a loss of the framework (`loss.own`) takes as targets; None, the default, where that is not known.

        Columns of targets are checked once, when they are loaded, so that a value that the loss would take without a
        word (255 in a binary cross entropy) is refused as it is for named losses.
        """
        return None

    def data_format(self, model: Any) -> tuple[str, str]:
        """That of a model's inputs, and of its outputs: `"channels_first"`, `"channels_last"`, or `""` if unknown."""
        return "", ""

    @abstractmethod
    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """Specs of the outputs for inputs of these specs; builds an unbuilt model with weights from `seed`.

        Raises:
            ShapeError: the model does not accept these inputs; has the framework's own message.
        """

    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """As `infer`, for a call with inputs at the paths `arguments` (see `Operation`), of outputs at any depth.

        The default calls `infer`, so that `arguments` are not used: define both if `calls_by_keyword`.
        """
        return positional_outputs(self.infer(model, inputs, seed))

    def infer_training(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()
    ) -> tuple[OutputSpec, ...]:
        """As `infer_outputs`, of a built model in training mode; `()`, the default, where that is not known."""
        return ()

    def signature(self, model: Any) -> inspect.Signature | None:
        """The signature of a call of the model, with its inputs alone; None, the default, where it is not known."""
        return None

    @abstractmethod
    def dtype_of(self, model: Any) -> str | None:
        """Dtype to which floating inputs are cast (that of the parameters); None if any will do."""

    @abstractmethod
    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Spec of every parameter of a built model, by name; shapes are whole, there is no batch."""

    @abstractmethod
    def build(self, segment: Segment) -> Program:
        """Make a segment ready to run. Its models are placed already.

        Raises:
            SpecError: this framework does not have the optimizer or loss.
        """

    @abstractmethod
    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Copies of the model's arrays in host memory, named `parameters/NAME` and `buffers/NAME`."""

    @abstractmethod
    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Load what `state` gave into the model, on its device.

        Raises:
            StateError: names, shapes or dtypes differ.
        """

    def models(self) -> Mapping[str, type]:
        """Model classes by name for configurations; the constructor takes what `get_config()` gives as keywords."""
        return {}

    def unsupported_reason(self, spec: Optimizer | Loss) -> str:
        """Why this backend cannot build an optimizer or loss; `""`, the default for names and `import_roots`: none."""
        own = spec.own
        if own is None or (isinstance(spec, Loss) and not isinstance(own, type) and not hasattr(own, "parameters")):
            return ""
        own = own.func if isinstance(own, functools.partial) else own
        bases = (own if isinstance(own, type) else type(own)).__mro__
        modules = [str(each.__module__) for each in (own, *bases) if getattr(each, "__module__", None)]
        roots = self.import_roots if isinstance(self, Backend) else ()
        if any(module.partition(".")[0] in roots for module in modules):
            return ""
        return f"{spec.name} comes from {modules[0]}"


class ComputingBackend(Backend, Exchange, Compute):
    """A backend that a graph can use. For annotations only: backends derive from the three classes, not from this."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """A device's memory in bytes; 0 where unknown. `peak` is the most that was used at once."""

    total: int
    free: int
    used: int
    peak: int


class Memory(Capability):
    """Capability: how much memory of a device is in use, and releasing what is only cached."""

    @abstractmethod
    def memory(self, device: Device) -> MemoryInfo:
        """The memory of the device now."""

    def share(self, device: Device, fraction: float) -> str:
        """Leave memory of a device to other frameworks; called before anything is placed there.

        A framework that reserves (nearly) all memory at once must allocate on demand, or reserve at most `fraction` of
        the total. Settings of the user stay.

        Returns:
            `""`, or why that is no longer possible (the framework is initialised already), with a hint.
        """
        return ""

    @abstractmethod
    def release_memory(self, device: Device) -> None:
        """Release cached memory; tensors in use stay."""


CAPABILITIES: dict[str, type] = {"exchange": Exchange, "compute": Compute, "memory": Memory}


def capabilities(backend: Backend) -> tuple[str, ...]:
    """Names of the capabilities that a backend declares."""
    return tuple(name for name, kind in CAPABILITIES.items() if backend.capability(kind) is not None)
