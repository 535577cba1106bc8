"""SimArray: an array in the memory of a simulated device, computed by NumPy and kept apart from all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, MoveError
from anyaccel.numpy_backend.sim_device import SimDevice

Array = np.ndarray[Any, np.dtype[Any]]
HOST = Device("cpu")


def _by(function: Callable[..., Any]) -> Any:
    """A method by way of NumPy's function: as a method, NumPy would not ask the array where its operands are."""

    def method(self: SimArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = function.__name__
    return method


class SimArray(np.ndarray[Any, np.dtype[Any]]):
    """An array on a simulated device. Made by `put`, and by computing with what `put` made.

    Computing with an array that is elsewhere raises DeviceMismatchError; plain numbers and arrays without axes are
    taken. Every result is on the same device, scalars too, so `float(x)`, `bool(x)`, `int(x)`, `x.item()` and
    `x.tolist()` are waits, and counted. `np.asarray(x)` and C code that reads the buffer cannot be seen.
    """

    on: SimDevice
    """The device's handle."""

    def __array_finalize__(self, obj: Array | None) -> None:
        """A new array is where the one is that it came from."""
        if isinstance(obj, SimArray):
            self.on = obj.on
            self.on.hold(self)

    # NumPy 2 says "cpu" of every array.
    @property
    def device(self) -> Device:  # type: ignore[override]
        """Where it is."""
        return self.on.device

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute on the bare arrays; `out` is returned as it was given."""
        on = self._common(ufunc.__name__, (inputs, kwargs))
        result = getattr(ufunc, method)(*_alike(_bare(inputs)), **_bare(kwargs))
        out = kwargs.get("out")
        if out is None:
            return _dressed(result, on)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute on the bare arrays. What answers with a plain truth value has waited for it."""
        on = self._common(func.__name__, (args, kwargs))
        result = func(*_bare(args), **_bare(kwargs))
        if isinstance(result, bool):
            on.waited()
        return _dressed(result, on)

    def __getitem__(self, key: Any) -> Any:
        """Views stay views; a single element is an array without axes."""
        self._common("indexing", key)
        return _dressed(super().__getitem__(_bare(key)), self.on)

    def __setitem__(self, key: Any, value: Any) -> None:
        """As NumPy's, with everything on this device."""
        self._common("assignment", (key, value))
        super().__setitem__(_bare(key), _bare(value))

    def _common(self, what: str, operands: Any) -> SimDevice:
        for array in _arrays(operands):
            if _elsewhere(array, self.on):
                raise DeviceMismatchError(
                    f"{what}: operands are on {self.on} and {place_of(array)}",
                    hint="move them to one device with anyaccel.move(x, device)",
                )
        return self.on

    def __float__(self) -> float:
        return float(read(self))

    def __int__(self) -> int:
        return int(read(self))

    def __bool__(self) -> bool:
        return bool(read(self))

    def __complex__(self) -> complex:
        return complex(read(self))

    def __index__(self) -> int:
        return read(self).__index__()

    def __repr__(self) -> str:
        return f"{read(self)!r} on {self.on}"

    def __str__(self) -> str:
        return str(read(self))

    def item(self, *args: Any) -> Any:
        """One element as a Python number: a wait."""
        return read(self).item(*args)

    def tolist(self) -> Any:
        """Nested lists of Python numbers: a wait."""
        return read(self).tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Refuse: other frameworks would take simulated memory for the host's.

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
    """A copy of a plain array on a simulated device, as its own kernels would make one: no transfer is counted.

    Raises:
        MoveError: the device cannot hold the dtype.
        OutOfMemoryError: no room.
    """
    on.check(array.dtype)
    placed = np.array(array, copy=True, subok=False).view(SimArray)
    placed.on = on
    on.hold(placed)
    return placed


def upload(array: Array, on: SimDevice) -> SimArray:
    """A copy of a plain array on a simulated device, counted as a transfer from the host. Raises as `put`."""
    placed = put(array, on)
    on.transfers.into.count(placed.nbytes)
    return placed


def download(array: SimArray) -> Array:
    """A plain copy in host memory: a transfer to the host, and a wait."""
    array.on.transfers.out.count(array.nbytes)
    return read(array)


def across(array: SimArray, on: SimDevice) -> SimArray:
    """A copy on another simulated device: a transfer between two. Raises as `put`."""
    placed = put(bare(array), on)
    for end in (array.on, on):
        end.transfers.between.count(placed.nbytes)
    return placed


def read(array: SimArray) -> Array:
    """A plain copy for the host to look at: a wait."""
    array.on.waited()
    return bare(array).copy()


def bare(array: Array) -> Array:
    """The values as a plain array that shares memory: what the device itself sees, for no code outside it."""
    return array.view(np.ndarray)


def made_like(array: Array, like: Array) -> Array:
    """A plain array put where `like` is, as something that was computed there."""
    return put(array, like.on) if isinstance(like, SimArray) else array


def place_of(array: Any) -> Device | SimDevice:
    """The handle of an array's simulated device, or the CPU."""
    return array.on if isinstance(array, SimArray) else HOST


def _elsewhere(array: Array, on: SimDevice) -> bool:
    if isinstance(array, SimArray):
        return array.on is not on
    return array.ndim > 0


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


def _alike(operands: tuple[Any, ...]) -> list[Any]:
    """Plain numbers in the floating dtype of the arrays: NumPy 1 takes them for float64 beside arrays without axes."""
    dtypes = [each.dtype for each in operands if isinstance(each, (np.ndarray, np.generic))]
    common = np.result_type(*dtypes) if dtypes else np.dtype(bool)
    return [common.type(each) if type(each) in (int, float) and common.kind == "f" else each for each in operands]


def _dressed(tree: Any, on: SimDevice) -> Any:
    """Results as arrays of the device; what shares memory with an array that is there costs nothing."""
    if isinstance(tree, SimArray):
        return tree
    if isinstance(tree, (np.ndarray, np.generic)):
        placed = np.asarray(tree).view(SimArray)
        placed.on = on
        on.hold(placed)
        return placed
    if isinstance(tree, (list, tuple)):
        parts = [_dressed(value, on) for value in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return tree
