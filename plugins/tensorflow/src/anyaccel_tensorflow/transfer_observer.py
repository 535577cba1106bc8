"""Transfer observer: records copies between devices and the host where TensorFlow's Python code calls its runtime.

Every operation and every compiled function goes through three functions of one module, every conversion through the
constructor of tensors, and every read through one method. Values of int32 and text are not counted: TensorFlow stores
them in host memory. A tensor on the CPU that becomes NumPy's counts as a transfer to the host, because the same code
makes one on a GPU. Transfers inside compiled functions are not seen; they are reported if a function has any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry, ops

from anyaccel.adapter.transfer_observer import ObservesByReplacing, Record, TransferEvent, numpy_reads, replaced
from anyaccel.device import Device

HOST = Device("cpu")
_TENSOR: Any = getattr(ops, "EagerTensor", None)
_BASE: Any = getattr(ops, "_EagerTensorBase", None)
_PATCHED: tuple[tuple[Any, str], ...] = (
    (pywrap_tfe, "TFE_Py_FastPathExecute"),
    (pywrap_tfe, "TFE_Py_Execute"),
    (pywrap_tfe, "TFE_Py_ExecuteCancelable"),
    (_TENSOR, "__init__"),
    (_BASE, "_numpy"),
    (_BASE, "_copy_nograd"),
    (op_def_registry, "get"),
    (context, "context"),
)
_ON_HOST = (tf.int32, tf.string, tf.resource, tf.variant)  # what TensorFlow keeps there, or what is no value
_ROLES = {
    **dict.fromkeys(("StringFormat", "PyFunc", "PyFuncStateless"), "reads"),  # give their inputs to code of the host
    # Their results have a length that the host must know.
    **dict.fromkeys(("Where", "DynamicPartition"), "waits"),
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), "waits"),
    "SyncDevice": "waits",
    **dict.fromkeys(("MultiDeviceIterator", "AnonymousMultiDeviceIterator", "GeneratorDataset"), "hides"),
    "AnonymousMultiDeviceIteratorV3": "hides",
}
"""What operations are beside computations."""
_ALWAYS_UNSEEN = (
    "values of int32, which TensorFlow stores in host memory and copies when an operation needs them",
    "reads by functions of NumPy, such as np.add(tensor, 1); np.asarray and np.array are observed",
)
_seen_to_miss: dict[str, None] = {}  # what has happened since observers were installed and could not be seen

DeviceOf = Callable[[str], Device]
"""The device that TensorFlow calls so."""


class TensorFlowTransfers(ObservesByReplacing):
    """All transfers and waits but a few; a tensor on the CPU that becomes NumPy's counts as one."""

    framework_name = "TensorFlow"

    def replaced_names(self) -> Sequence[tuple[Any, str]]:
        return _PATCHED

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Observe by functions around TensorFlow's own."""
        return observed(record, self.backend.device_named)

    def unobserved_transfers(self) -> Sequence[str]:
        """Return transfers that are never observed, not observed on these devices, or hidden inside functions."""
        if not self.can_observe_transfers():
            return super().unobserved_transfers()
        gpus = len(tf.config.get_visible_devices()) > len(tf.config.get_visible_devices("CPU"))
        return [
            *_ALWAYS_UNSEEN,
            *(["copies inside compiled functions on accelerators"] if gpus else []),
            *_seen_to_miss,
        ]


@contextmanager
def observed(record: Record, device_of: DeviceOf) -> Iterator[None]:
    """Tell `record` each transfer and wait inside the block; none where names are missing."""
    observer = _Observer(record, cache(device_of))
    _seen_to_miss.clear()
    with observer.operations(), observer.conversions(), observer.reads(), observer.copies():
        yield


@cache
def _plan(operation: str) -> tuple[int | None, str]:
    """Return the number of inputs of an operation, None for a compiled function, and its kind if it does not
    compute.
    """
    definition = op_def_registry.get(operation)
    return len(definition.input_arg) if definition is not None else None, _ROLES.get(operation, "")


class _Observer:
    """Create events from the calls of TensorFlow's runtime."""

    def __init__(self, record: Record, device_of: DeviceOf) -> None:
        self._record, self._device_of = record, device_of
        self._several: bool | None = None

    def _tell(self, source: Device, target: Device, name: str, nbytes: int, result: Any = None) -> None:
        """Report a copy between two devices unless both are CPUs; TensorFlow lets the host wait for it."""
        to_device, from_device = target.kind != "cpu", source.kind != "cpu"
        apart = to_device == from_device
        self._record(
            TransferEvent(
                kind="device to device" if apart else "host to device" if to_device else "device to host",
                source=source,
                target=target,
                operation=name,
                nbytes=nbytes,
                waits=to_device or from_device,
                result=result,
            )
        )

    # -- operations --------------------------------------------------------------------------------------------------

    @contextmanager
    def operations(self) -> Iterator[None]:
        """Observe operations, in every thread, and calls of compiled functions."""
        fast = pywrap_tfe.TFE_Py_FastPathExecute
        execute, cancelable = pywrap_tfe.TFE_Py_Execute, pywrap_tfe.TFE_Py_ExecuteCancelable

        def told_fast(state: Any, operation: str, name: Any, *rest: Any) -> Any:
            result = fast(state, operation, name, *rest)
            number, role = _plan(operation)
            self._operation(operation, role, rest[:number], result)
            return result

        def told(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(state: Any, device: Any, operation: Any, inputs: Any, *rest: Any) -> Any:
                result = function(state, device, operation, inputs, *rest)
                name = operation.decode() if isinstance(operation, bytes) else operation
                number, role = _plan(name)
                if number is None:
                    inside = inside_function(name)
                    for gap in inside.unseen:
                        _seen_to_miss[gap] = None
                    if self._has_several():
                        names = {str(tensor.device) for tensor in _tensors((inputs, result))}
                        if len({self._device_of(name) for name in names | set(inside.devices)}) > 1:
                            _seen_to_miss[f"copies between the devices of the compiled function {inside.name!r}"] = None
                else:
                    self._operation(name, role, inputs, result)
                return result

            return call

        with (
            replaced(pywrap_tfe, "TFE_Py_FastPathExecute", told_fast),
            replaced(pywrap_tfe, "TFE_Py_Execute", told(execute)),
            replaced(pywrap_tfe, "TFE_Py_ExecuteCancelable", told(cancelable)),
        ):
            yield

    def _operation(self, name: str, role: str, inputs: Sequence[Any], result: Any) -> None:
        if role == "reads":
            for tensor in _tensors(inputs):
                self._read(tensor, name)
            return
        if role == "waits":
            self._waited(self._target(inputs, result), name)
        elif role == "hides":
            _seen_to_miss["copies to a device by tf.data prefetching"] = None
        for tensor in inputs:
            if type(tensor) is _TENSOR:
                if self._has_several():
                    self._given(tensor, name, inputs, result)
            elif isinstance(tensor, (np.ndarray, list, tuple)):
                # Report a NumPy array, or a sequence of tensors, arrays and lists, that an operation takes
                for value in (tensor,) if isinstance(tensor, np.ndarray) else tensor:
                    if type(value) is not _TENSOR:
                        self._converted(value, tensor, name, inputs, result)
                    elif self._has_several():
                        self._given(value, name, inputs, result)

    def _has_several(self) -> bool:
        """Whether there are several devices, between which tensors could be copied; TensorFlow has started."""
        if self._several is None:
            self._several = len(tf.config.list_logical_devices()) > 1
        return self._several

    def _given(self, tensor: Any, name: str, inputs: Sequence[Any], result: Any) -> None:
        """Report a tensor that an operation takes, which copies it if it is elsewhere."""
        source, target = tensor.backing_device, self._target(inputs, result)
        if source != target and tensor.dtype not in _ON_HOST:  # in this order: comparing dtypes takes 1 us
            moved = result if name == "Identity" else None
            self._tell(self._device_of(source), self._device_of(target), name, _nbytes(tensor), moved)

    def _converted(self, value: Any, beside: Any, name: str, inputs: Sequence[Any], result: Any) -> None:
        """Report a NumPy array, or a list of numbers, that the runtime converts to a tensor."""
        array = np.asarray(value)
        like = next((tensor.dtype for tensor in _tensors(beside)), None)
        dtype = like or tf.as_dtype(
            array.dtype if isinstance(value, np.ndarray) else _NATIVE.get(array.dtype.kind, "O")
        )
        if array.ndim and dtype not in _ON_HOST:
            target = self._device_of(self._target(inputs, result))
            self._put(target, name, array.size * dtype.size)

    def _put(self, target: Device, name: str, nbytes: int, result: Any = None) -> None:
        self._record(
            TransferEvent(
                kind="host to device",
                source=HOST,
                target=target,
                operation=name,
                nbytes=nbytes,
                waits=target.kind != "cpu",
                result=result,
            )
        )

    def _target(self, inputs: Sequence[Any], result: Any) -> str:
        """Return the device of an operation: of its result, of the variable that it writes, or the current device."""
        if type(result) is _TENSOR:
            return str(result.device)
        for tensor in _tensors(result):
            return str(tensor.device)
        for tensor in _tensors(inputs):
            if tensor.dtype == tf.resource:
                return str(tensor.device)
        return context.context().device_name or str(tf.config.list_logical_devices()[0].name)

    def _waited(self, device: str, name: str) -> None:
        source = self._device_of(device)
        self._record(TransferEvent(kind="wait", source=source, target=HOST, operation=name, waits=True))

    # -- conversions, reads and copies -------------------------------------------------------------------------------

    @contextmanager
    def conversions(self) -> Iterator[None]:
        """Observe arrays and lists that become tensors: `tf.constant`, operands, arguments of compiled functions."""
        make_tensor = vars(_TENSOR)["__init__"]

        def init(this: Any, value: Any, *args: Any, **kwargs: Any) -> None:
            make_tensor(this, value, *args, **kwargs)
            if type(value) is not _TENSOR and this.ndim and this.dtype not in _ON_HOST:
                self._put(self._device_of(this.backing_device), "EagerTensor", _nbytes(this), this)

        with replaced(_TENSOR, "__init__", init):
            yield

    @contextmanager
    def reads(self) -> Iterator[None]:
        """Observe tensors that become NumPy's, for any reason."""
        by_tensor = vars(_BASE)["_numpy"]

        with numpy_reads(lambda value: type(value) is _TENSOR, self._read) as is_reading:

            def read(this: Any) -> Any:
                if not is_reading():
                    self._read(this, "numpy")
                return by_tensor(this)

            with replaced(_BASE, "_numpy", read):
                yield

    def _read(self, tensor: Any, name: str) -> None:
        if tensor.dtype not in _ON_HOST:
            source = self._device_of(tensor.backing_device)
            self._record(
                TransferEvent(
                    kind="device to host",
                    source=source,
                    target=HOST,
                    operation=name,
                    nbytes=_nbytes(tensor),
                    waits=True,
                )
            )

    @contextmanager
    def copies(self) -> Iterator[None]:
        """Observe `tensor.cpu()` and `tensor.gpu()`, which are not operations."""
        copy_tensor = vars(_BASE)["_copy_nograd"]

        def copy(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = copy_tensor(this, *args, **kwargs)
            if result.backing_device != this.backing_device and this.dtype not in _ON_HOST:
                source, target = self._device_of(this.backing_device), self._device_of(result.backing_device)
                self._tell(source, target, "copy", _nbytes(this), result)
            return result

        with replaced(_BASE, "_copy_nograd", copy):
            yield


_NATIVE = {"f": "float32", "b": "bool", "c": "complex128", "i": "int32", "U": "string", "S": "string"}
"""The dtypes that TensorFlow gives to numbers of Python, by NumPy's kinds."""


def _tensors(values: Any) -> Iterator[Any]:
    for item in values if isinstance(values, (list, tuple)) else (values,):
        if type(item) is _TENSOR:
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _tensors(item)


def _nbytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() * tensor.dtype.size)


# -- What a compiled function does that no code of Python sees: its devices, what it prints, and its Python functions


_NAME = re.compile(r"(?:_*(?:inference|forward|backward)_+)*(.+?)(?:_\d+)*")
_TELLING = {
    "PrintV2": "tf.print",
    "PyFunc": "tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
}


@dataclass(frozen=True, slots=True)
class InsideFunction:
    """The content of a compiled function.

    Attributes:
        name: Name that the user gave it.
        devices: Names of the devices that it requests.
        unseen: Ways of passing values to the host, a text each.
    """

    name: str
    devices: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@cache
def inside_function(name: str) -> InsideFunction:
    """Return the content of the compiled function with this name, and of those that it calls; read once."""
    match = _NAME.fullmatch(name)
    shown = match[1] if match else name
    nodes = list(_nodes(name, set()))
    told = dict.fromkeys(_TELLING[node.op] for node in nodes if node.op in _TELLING)
    return InsideFunction(
        name=shown,
        devices=tuple(dict.fromkeys(node.device for node in nodes if node.device)),
        unseen=tuple(f"reads of {gap} inside the compiled function {shown!r}" for gap in told),
    )


def _nodes(name: str, seen: set[str]) -> Iterator[Any]:
    if name in seen or not context.context().has_function(name):
        return
    seen.add(name)
    for node in context.context().get_function_def(name).node_def:
        yield node
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                yield from _nodes(called.name, seen)
