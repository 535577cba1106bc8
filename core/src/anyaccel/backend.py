"""The plugin contract: the classes that a plugin implements so that a framework computes on one or more kinds of
device.

Every plugin implements `Backend`. The capabilities (`Exchange`, `Compute`, `Memory`) are additional base classes: a
backend declares one by deriving from it, and the conformance kit then tests it. Methods that were added later have a
default.
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
from anyaccel.install_hints import foreign_module
from anyaccel.program import CompileEstimate as CompileEstimate
from anyaccel.program import MultiStepProgram as MultiStepProgram
from anyaccel.program import Program as Program
from anyaccel.segment import OutputSpec, Path, Segment, TensorSpec, positional_outputs
from anyaccel.specs import Loss, LossTargets, Optimizer


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device's product name, vendor (lower case), identity, memory space, and total memory in bytes (0 if unknown).

    `identity` is a UUID as the vendor's tools write it (`GPU-...` for NVIDIA) or a PCI address, or `""`. Devices with
    an equal, non-empty `memory_space` share memory by DLPack; `"host"` is the memory space of NumPy's arrays.
    """

    name: str
    vendor: str = ""
    identity: str = ""
    memory_space: str = ""
    total_memory: int = 0


Kind = TypeVar("Kind")


class Backend(ABC):
    """One framework on one or more kinds of device. A plugin's `backends()` hook returns the instances.

    Creating an instance must not import the framework; methods may import it.

    Example:
        >>> import numpy as np
        >>> from anyaccel.registry import registry
        >>> backend = registry().find("numpy", "cpu")
        >>> backend.device_of(np.zeros(3)), backend.device_string(backend.devices()[0])
        (Device(kind='cpu', index=0), 'cpu')
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
        """Return the object that implements a capability for this backend, always the same one; None if it lacks the
        capability.

        The backend's own capability wins; otherwise another plugin can provide it by an entry point of the group
        `anyaccel.capabilities`. Do not call this in steps: ask once, when you build something.

        Raises:
            PluginError: two other plugins provide it, or the one that does is broken.
        """
        made: dict[type[Any] | str, Any] = self.__dict__.setdefault("_made_capabilities", {})
        if kind not in made:
            if isinstance(self, kind):
                return self
            name, declared = capability_name(kind), None
            package = name.partition(".")[0]
            for key in self.capabilities:  # the last one counts: a derived backend adds its own behind those it has
                named_class: Any = key
                if isinstance(key, str) and key != name and key.partition(".")[0] == package:
                    # A class of the same package; others are not imported.
                    named_class = getattr(sys.modules[package], key.partition(".")[2])
                if key == name or (isinstance(named_class, type) and issubclass(named_class, kind)):
                    declared = key
            if declared is None:
                name = f"{self.framework}.{name}"
                entry = named(BROUGHT, name)
                brought = None if entry is None else loaded(entry)(self)
                if entry is not None and brought is not None and not isinstance(brought, kind):
                    problem = f"the entry point {name} returns {brought!r:.200}, which is not a {kind.__name__}"
                    raise PluginError(problem, hint=f"update or uninstall {entry.value.partition('.')[0]}")
                made.setdefault(kind, brought)
            else:
                made.setdefault(
                    kind, made.get(declared) or made.setdefault(declared, self.capabilities[declared](self))
                )
        implementation: Kind = made[kind]
        return implementation

    @final
    def required(self, kind: type[Kind]) -> Kind:
        """Return the object that implements a capability; raise if the backend does not have it.

        Raises:
            CapabilityError: the backend does not have the capability.
        """
        made = self.capability(kind)
        if made is None:
            raise CapabilityError(f"the plugin of {self.framework} lacks the capability {kind.__name__}")
        return made

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """List the usable devices of `kinds`, best first, without duplicates. Never raises and initializes nothing."""

    @abstractmethod
    def device_of(self, obj: Any) -> Device | None:
        """Return the device of a tensor or placed object; None for an object that holds no tensor."""

    @abstractmethod
    def place(self, obj: Any, device: Device) -> Any:
        """Put an object with state (a model, an optimizer, a tree of tensors) on a device; **use the result**.

        A second call changes nothing. Optimizer state moves along, except scalars that must stay on the host.
        """

    @abstractmethod
    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Return a tensor with the same values and dtype on `device`; the same object if it is on that device already.

        Args:
            tensor: A tensor of this framework.
            device: The target.
            pinned: Copy from pinned memory; ignored if that is not available or not safe.

        Raises:
            MoveError: the device does not support this dtype.
            OutOfMemoryError: not enough memory.
        """

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Return a context that creates new tensors on `device`; the previous default is restored on exit."""

    @abstractmethod
    def device_string(self, device: Device) -> str:
        """Return the framework's own name for the device, such as `"cuda:0"` for gpu:0."""

    def native_device(self, device: Device) -> Any:
        """Return the framework's own device object, which plans hold, without initializing the device. Default:
        `device_string`.
        """
        return self.device_string(device)

    def thread_rng(self, key: int | None) -> AbstractContextManager[Any]:
        """Return a context that makes this thread draw from `key` (None: from the global state). It is entered often.

        Its `draws` counts the draws. Its `passed` is true if a global generator was used anyway, for example by code
        that seeds it.
        """
        return nullcontext()

    def global_rng(self, key: int) -> AbstractContextManager[Any]:
        """Return a context that starts global generators from `key`; on exit they are restored. It is entered often.

        The next entry continues where the last one ended. Unlike `thread_rng` it applies to all threads and to code
        that seeds generators; only the thread that trains enters it. `draws` counts how often it ended with another
        state.
        """
        return nullcontext()

    def watch_rng(self) -> AbstractContextManager[Any]:
        """Return a context whose `passed` tells afterwards whether code bypassed `thread_rng`."""
        return nullcontext()

    def generator_state(self, generator: Any = None) -> np.ndarray | None:
        """Return the state of a generator of this framework, or of the global generator of the host; None for anything
        else.
        """
        return None

    def set_generator_state(self, state: np.ndarray, generator: Any = None) -> None:
        """Restore the output of `generator_state`."""

    def owns(self, obj: Any) -> bool:
        """Return whether an object belongs to this framework, by default as `import_roots` says. Imports and changes
        nothing.
        """
        return any(str(base.__module__).partition(".")[0] in self.import_roots for base in type(obj).__mro__)

    def synchronize(self, device: Device) -> None:
        """Wait until all work on `device` is done."""

    def device_info(self, device: Device) -> DeviceInfo:
        """Describe the device. The default knows its name and promises no shared memory, because that needs DLPack."""
        return DeviceInfo(str(device))

    def unavailable_reason(self, device: Device) -> str:
        """Return why `device` is not in `devices()`; `""` if unknown."""
        return ""


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """A tensor whose copy to a device is in progress.

    The computing thread calls `wait` once before the first use: later work on the device waits for the copy, the caller
    does not. `source_reusable` blocks until the source array may be overwritten; any thread may call it, repeatedly.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> from anyaccel.registry import registry
        >>> backend = registry().computing("numpy")
        >>> with aa.simulate(1):
        ...     copy = backend.copy_async(np.ones(4, "float32"), aa.Device("sim", 0))
        ...     copy.wait()
        ...     print(backend.device_of(copy.tensor))
        sim:0
    """

    tensor: Any
    wait: Callable[[], None] = lambda: None
    source_reusable: Callable[[], None] = lambda: None


class Exchange(ABC):
    """Capability: copy tensors from and to host memory and other frameworks.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> from anyaccel.registry import registry
        >>> backend = registry().computing("numpy")
        >>> tensor = backend.from_host(np.arange(3.0), aa.Device("cpu"))
        >>> backend.to_host(tensor)
        array([0., 1., 2.])
    """

    index_dtype: ClassVar[str] = "int64"
    """Dtype of row orders and class indices, `"int64"` or `"int32"`."""

    def loaded_dtype(self, dtype: str) -> str:
        """Return the dtype for loading integers of `dtype`; another one if the backend lacks it."""
        return dtype

    @abstractmethod
    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Copy an array to a tensor on `device` with separate memory, so that `array` may change. Keeps dtype and
        shape.

        Raises:
            MoveError: the framework or the device does not support this dtype.
            OutOfMemoryError: not enough memory.
        """

    @abstractmethod
    def to_host(self, tensor: Any) -> np.ndarray:
        """Return the values as a NumPy array, after waiting for them. It may share memory with a tensor on the CPU.

        Raises:
            MoveError: NumPy does not support this dtype.
        """

    @abstractmethod
    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Return a tensor on `device` from another framework's tensor through DLPack; no copy within one memory space.

        The two may share memory, so neither side writes to it. Keeps dtype and shape, and accepts any strides.

        Raises:
            MoveError: the foreign tensor cannot be imported.
        """

    @abstractmethod
    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Gather rows of a resident column, on its device: `column[start:stop]`, or `column[order[start:stop]]`.

        `order` is a tensor [n] of `index_dtype` on the same device. Does not wait for the result.
        """

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a tensor on `device` from an array that the caller gives up: no other code reads or writes it from now
        on.

        A framework that can compute from this memory does not have to copy. The default copies.
        """
        return self.from_host(array, device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Allocate uninitialized host memory that makes `copy_async` fastest: pinned memory, if that helps."""
        return np.empty(shape, dtype)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Start to copy an array (from `staging_buffer`, or a part of one) to `device` while it computes.

        Another thread may call this. The default copies synchronously.

        Raises:
            MoveError: the framework or the device does not support this dtype.
            OutOfMemoryError: not enough memory.
        """
        return AsyncCopy(self.from_host(array, device))

    def is_ready(self, tensor: Any) -> bool:
        """Return whether a tensor's values are already computed, without waiting. Default: True."""
        return True

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Return device scalars as a float64 array [n] in host memory, after waiting for them."""
        return np.array([float(self.to_host(value)) for value in values], dtype=np.float64)


class Compute(ABC):
    """Capability: infer shapes of models, and train and evaluate segments.

    Example:
        >>> import anyaccel as aa
        >>> from anyaccel.registry import registry
        >>> from anyaccel.segment import TensorSpec
        >>> backend = registry().computing("numpy")
        >>> backend.infer(aa.SequentialMLP([2]), [TensorSpec((3,), "float32")], seed=0)
        (TensorSpec(shape=(2,), dtype='float32'),)
    """

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
        """Return the object that a graph node stores for `model`: the model, or an object that also holds its
        parameters.

        It is called when a graph is built; wrapping a wrapped model changes nothing. Override it for models that are
        functions without parameters, which could not store the learned values. The default returns the model.
        """
        return model

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()) -> bool:
        """Return whether a built model may write to its inputs; called for models that another framework feeds.

        If True, the default, the plan copies such a value on its device instead of sharing memory. `arguments` are the
        same as in `Operation`, passed if a backend `calls_by_keyword`.
        """
        return True

    def batch_coupling(self, model: Any) -> str:
        """Return what couples the rows of a batch in training (`"BatchNorm"`), so that it cannot be split; `""` for
        nothing.
        """
        return ""

    def untrainable_reason(self, model: Any) -> str:
        """Return what training would ignore in a model, such as a custom training method; `""`, the default, for
        nothing.
        """
        return ""

    def loss_targets(self, loss: Loss) -> LossTargets | None:
        """Return the targets that a loss of the framework (`loss.own`) accepts; None, the default, if unknown.

        Columns of targets are checked once, when they are loaded. A value that the loss would silently accept (255 in a
        binary cross entropy) is then refused, as for named losses.
        """
        return None

    def data_format(self, model: Any) -> tuple[str, str]:
        """Return the format of a model's inputs and outputs: `"channels_first"`, `"channels_last"`, or `""`."""
        return "", ""

    @abstractmethod
    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs for inputs of these specs; build an unbuilt model with weights from `seed`.

        Raises:
            ShapeError: the model does not accept these inputs; the message has the framework's own.
        """

    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """Infer outputs at any depth, for a call with inputs at the paths `arguments` (see `Operation`); otherwise like
        `infer`.

        The default calls `infer` and ignores `arguments`: override both if the backend `calls_by_keyword`.
        """
        return positional_outputs(self.infer(model, inputs, seed))

    def infer_training(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()
    ) -> tuple[OutputSpec, ...] | None:
        """Infer the outputs of a built model in training mode, like `infer_outputs`.

        `()`, the default, if they are unknown; None if they are known to be those of evaluation.
        """
        return ()

    def signature(self, model: Any) -> inspect.Signature | None:
        """Return the signature of a call of the model, with only its inputs; None, the default, if unknown."""
        return None

    @abstractmethod
    def dtype_of(self, model: Any) -> str | None:
        """Return the dtype for floating inputs (the dtype of the parameters); None if any dtype works."""

    @abstractmethod
    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the spec of every parameter of a built model, by name; shapes are whole, without a batch."""

    @abstractmethod
    def build(self, segment: Segment) -> Program:
        """Build a program that runs a segment. The models of the segment are already placed.

        Raises:
            SpecError: this framework does not have the optimizer or loss.
        """

    @abstractmethod
    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Return copies of the model's arrays in host memory, named `parameters/NAME` and `buffers/NAME`."""

    def live_state(self, model: Any) -> dict[str, np.ndarray]:
        """Return `state` to be read at once: arrays may share memory with the model, so nobody writes to them.

        By default these are the copies of `state`.
        """
        return self.state(model)

    @abstractmethod
    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Copy the output of `state` into the model, on its device.

        Args:
            model: The model.
            state: Arrays that the model must not keep: they may be on a mapping of a file, or the model's own.

        Raises:
            StateError: names, shapes or dtypes differ.
        """

    def models(self) -> Mapping[str, type]:
        """Return model classes by name for configurations; the constructor takes the output of `get_config()` as
        keywords.
        """
        return {}

    def unsupported_reason(self, spec: Optimizer | Loss) -> str:
        """Return why this backend cannot build an optimizer or loss; `""` if it can.

        By default it can build named ones, those of `import_roots`, and functions that are of no other framework.
        """
        custom = spec.own.func if isinstance(spec.own, functools.partial) else spec.own
        roots = self.import_roots if isinstance(self, Backend) else ()
        if custom is None:
            return ""
        if isinstance(spec, Loss) and not isinstance(spec.own, type) and not hasattr(spec.own, "parameters"):
            module = foreign_module(spec.own, roots)
            return f"{spec.name} comes from {module}" if module else ""
        bases = (custom if isinstance(custom, type) else type(custom)).__mro__
        modules = [str(kind.__module__) for kind in (custom, *bases) if getattr(kind, "__module__", None)]
        if any(module.partition(".")[0] in roots for module in modules):
            return ""
        return f"{spec.name} comes from {modules[0]}"


class ComputingBackend(Backend, Exchange, Compute):
    """A backend that a graph can use. For annotations only: backends derive from the three classes, not from it."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """A device's memory in bytes; 0 if unknown. `peak` is the largest use so far."""

    total: int
    free: int
    used: int
    peak: int


class Memory(Capability):
    """Capability: report how much memory of a device is in use, and release cached memory.

    Example:
        >>> import anyaccel as aa
        >>> from anyaccel.registry import registry
        >>> memory = registry().find("numpy").capability(aa.Memory)
        >>> memory.memory(aa.Device("cpu")).total > 0
        True
    """

    @abstractmethod
    def memory(self, device: Device) -> MemoryInfo:
        """Return the current memory of the device."""

    def share(self, device: Device, fraction: float) -> str:
        """Leave memory of a device to other frameworks; called before anything is placed there.

        A framework that reserves (nearly) all memory when it starts must allocate on demand, or reserve at most
        `fraction` of the total. Settings of the user are kept.

        Returns:
            `""`, or why that is no longer possible (the framework is already initialized), with a hint.
        """
        return ""

    @abstractmethod
    def release_memory(self, device: Device) -> None:
        """Release cached memory; tensors in use stay."""


CAPABILITIES: dict[str, type] = {"exchange": Exchange, "compute": Compute, "memory": Memory}


def capabilities(backend: Backend) -> tuple[str, ...]:
    """Return the names of the capabilities that a backend declares."""
    return tuple(name for name, kind in CAPABILITIES.items() if backend.capability(kind) is not None)
