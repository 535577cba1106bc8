"""SimArray: an array in the memory of a simulated device, which NumPy computes with and other devices cannot read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, MoveError
from anyaccel.numpy_backend.sim_device import SimDevice

Array = np.ndarray[Any, np.dtype[Any]]
HOST = Device("cpu")
_COUNTING = frozenset({"argwhere", "compress", "extract", "flatnonzero", "nonzero", "unique"})
"""Functions whose results are as long as their values say, so that the host waits."""


def _by(function: Callable[..., Any]) -> Any:
    """Return a method that calls NumPy's function, which goes through `__array_function__` as ndarray's method does
    not.
    """

    def method(self: SimArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = function.__name__
    return method


class SimArray(np.ndarray[Any, np.dtype[Any]]):
    """An array on a simulated device. Made by `put`, and by computing with such arrays.

    Computing with an array on another device raises DeviceMismatchError; Python numbers and arrays without axes are
    accepted. Every result is on the same device, scalars too, so `float(x)`, `bool(x)`, `int(x)`, `x.item()`,
    `x.tolist()` and masks as indices are counted as synchronizations. `np.asarray(x)` and C code that reads the buffer
    go unnoticed.
    """

    on: SimDevice

    def __array_finalize__(self, obj: Array | None) -> None:
        """Put a new array on the device of its source."""
        if isinstance(obj, SimArray):
            self.on = obj.on
            self.on.hold(self)

    # NumPy 2 says "cpu" of every array.
    @property
    def device(self) -> Device:  # type: ignore[override]
        """The simulated device."""
        return self.on.device

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute on the plain arrays; `out` is returned unchanged."""
        on = self._check_operands(ufunc.__name__, (inputs, kwargs))
        result = getattr(ufunc, method)(*_cast_numbers(_bare(inputs)), **_bare(kwargs))
        _computed(on, (inputs, kwargs), result)
        out = kwargs.get("out")
        if out is None:
            return _wrapped(result, on)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute on the plain arrays. A function that returns a Python bool, or a result whose size depends on values,
        synchronizes.
        """
        on = self._check_operands(func.__name__, (args, kwargs))
        result = func(*_bare(args), **_bare(kwargs))
        _computed(on, (args, kwargs), result)
        if isinstance(result, bool) or func.__name__ in _COUNTING:
            on.waited(func.__name__)
        return _wrapped(result, on)

    def __getitem__(self, key: Any) -> Any:
        """Slices are views; a single element is an array without axes."""
        self._check_operands("indexing", key)
        keys = key if type(key) is tuple else (key,)
        if any(
            isinstance(index, SimArray) and index.dtype == bool for index in keys
        ):  # a mask: how many places has it?
            self.on.waited("nonzero")
        return _wrapped(super().__getitem__(_bare(key)), self.on)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign as NumPy does; all operands must be on this device."""
        self._check_operands("assignment", (key, value))
        super().__setitem__(_bare(key), _bare(value))

    def _check_operands(self, operation: str, operands: Any) -> SimDevice:
        for array in _arrays(operands):
            is_elsewhere = array.on is not self.on if isinstance(array, SimArray) else array.ndim > 0
            if is_elsewhere:
                raise DeviceMismatchError(
                    f"{operation}: operands are on {self.on} and {place_of(array)}",
                    hint="move them to one device with anyaccel.move(x, device)",
                )
        return self.on

    def __float__(self) -> float:
        return float(read(self, "float"))

    def __int__(self) -> int:
        return int(read(self, "int"))

    def __bool__(self) -> bool:
        return bool(read(self, "bool"))

    def __complex__(self) -> complex:
        return complex(read(self, "complex"))

    def __index__(self) -> int:
        return read(self, "index").__index__()

    def __repr__(self) -> str:
        return f"{read(self, 'repr')!r} on {self.on}"

    def __str__(self) -> str:
        return str(read(self, "str"))

    def item(self, *args: Any) -> Any:
        """Return one element as a Python number; synchronizes."""
        return read(self, "item").item(*args)

    def tolist(self) -> Any:
        """Nested lists of Python numbers; synchronizes."""
        return read(self, "tolist").tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Raise a MoveError, because other frameworks would treat simulated memory as host memory.

        Raises:
            MoveError: always.
        """
        raise MoveError(f"an array on {self.on} cannot be exported by DLPack", hint="move it to the CPU first")

    all = _by(np.all)
    any = _by(np.any)
    argmax = _by(np.argmax)
    argmin = _by(np.argmin)
    choose = _by(np.choose)
    compress = _by(lambda a, condition, *args, **kwargs: np.compress(condition, a, *args, **kwargs))
    dot = _by(np.dot)
    max = _by(np.max)
    mean = _by(np.mean)
    min = _by(np.min)
    nonzero = _by(np.nonzero)
    put = _by(np.put)
    round = _by(np.round)
    searchsorted = _by(np.searchsorted)
    std = _by(np.std)
    sum = _by(np.sum)
    take = _by(np.take)
    trace = _by(np.trace)
    var = _by(np.var)


def put(array: Array, on: SimDevice) -> SimArray:
    """Return a copy of a plain array in a simulated device's memory, as if a kernel had made it: no transfer is
    counted.

    Raises:
        MoveError: the device cannot hold the dtype.
        OutOfMemoryError: the device is full.
    """
    on.check(array.dtype)
    placed = np.array(array, copy=True, subok=False).view(SimArray)
    placed.on = on
    on.hold(placed)
    return placed


def upload(array: Array, on: SimDevice, *, waits: bool = True) -> SimArray:
    """Return a copy of a plain array on a simulated device, counted as a transfer from the host. Raises as `put`."""
    placed = put(array, on)
    on.uploaded(placed.nbytes, waits=waits)
    return placed


def download(array: SimArray) -> Array:
    """Return a plain copy in host memory: a transfer to the host, and a synchronization."""
    array.on.downloaded(array.nbytes)
    return bare(array).copy()


def copy_between(array: SimArray, on: SimDevice) -> SimArray:
    """Return a copy on another simulated device: a transfer between two. Raises as `put`."""
    placed = put(bare(array), on)
    on.received(array.on, placed.nbytes)
    return placed


def read(array: SimArray, name: str) -> Array:
    """Return a plain copy for the host to look at, as the method `name` does: a synchronization."""
    array.on.waited(name)
    return bare(array).copy()


def bare(array: Array) -> Array:
    """Return a plain array that shares the memory: how the device itself sees it."""
    return array.view(np.ndarray)


def put_like(array: Array, like: Array | None) -> Array:
    """Return a plain array, put on the device of `like` as if computed there."""
    return put(array, like.on) if isinstance(like, SimArray) else array


def place_of(array: Any) -> Device | SimDevice:
    """Return the simulated device of an array, or the CPU."""
    return array.on if isinstance(array, SimArray) else HOST


def _computed(on: SimDevice, operands: Any, result: Any) -> None:
    """Advance the device's clock for the bytes read and written; views, without separate memory, are free."""
    if on.timing is not None:
        written = [array for array in _arrays(result) if array.base is None]
        if written or not isinstance(result, np.ndarray):
            on.timing.compute(sum(array.nbytes for array in (*_arrays(operands), *written)))


def _arrays(tree: Any) -> Iterator[Array]:
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, (list, tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _arrays(part)


def _bare(tree: Any) -> Any:
    if isinstance(tree, SimArray):
        return bare(tree)
    if isinstance(tree, dict):
        return {key: _bare(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_bare(value) for value in tree)
    return tree


def _cast_numbers(operands: tuple[Any, ...]) -> list[Any]:
    """Cast Python numbers to the floating dtype of the arrays: NumPy 1 treats them as float64 with zero-dimensional
    arrays.
    """
    dtypes = [x.dtype for x in operands if isinstance(x, (np.ndarray, np.generic))]
    common = np.result_type(*dtypes) if dtypes else np.dtype(bool)
    return [common.type(x) if type(x) in (int, float) and common.kind == "f" else x for x in operands]


def _wrapped(tree: Any, on: SimDevice) -> Any:
    """Return results as arrays of the device; an array that shares memory with an existing one costs nothing."""
    if isinstance(tree, SimArray):
        return tree
    if isinstance(tree, (np.ndarray, np.generic)):
        placed = np.asarray(tree).view(SimArray)
        placed.on = on
        on.hold(placed)
        return placed
    if isinstance(tree, (list, tuple)):
        parts = [_wrapped(value, on) for value in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return tree
