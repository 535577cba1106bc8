"""Tensors in host memory, and their asynchronous copies to a device from page-locked memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import AsyncCopy
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty

if TYPE_CHECKING:
    import torch

# From this size on, NumPy asks Linux for huge pages, and torch does not: the first copy takes a quarter of the time.
_HUGE_PAGES_FROM = 4 * 2**20


def copied(array: np.ndarray, *, pinned: bool = False) -> torch.Tensor:
    """Return a tensor in host memory with the values of a NumPy array of any strides and byte order; owns its memory.

    Raises:
        MoveError: torch lacks the dtype.
    """
    import torch

    dtype = _torch_dtype(array.dtype)
    if not pinned and array.nbytes >= _HUGE_PAGES_FROM:
        copy = None
        with suppress(MemoryError):  # torch's own error says how much was asked for
            copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
        if copy is not None:
            np.copyto(copy, array)
            return as_tensor(copy)
    tensor = torch.empty(array.shape, dtype=dtype, device="meta" if pinned else "cpu")
    if pinned:
        tensor = _pinned_like(tensor)
    np.copyto(as_array(tensor), array)
    return tensor


def shared(array: np.ndarray) -> torch.Tensor:
    """Return a tensor on the memory of a writable NumPy array, which it keeps alive.

    Raises:
        MoveError: torch lacks the dtype.
    """
    _torch_dtype(array.dtype)
    return as_tensor(array)


def readable(array: np.ndarray) -> torch.Tensor:
    """Return a tensor to read only, on the memory of an array if torch can use it, otherwise with a copy.

    Raises:
        MoveError: torch lacks the dtype.
    """
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative and array.size):
        return copied(array)
    words = array.reshape(-1).view(np.uint8)
    tensor = as_tensor(np.asarray(_Words(words)).view(array.dtype))
    return tensor.view(array.shape)


class _Words:
    """The memory of an array, as if it were writable: torch warns of read-only arrays even if they are only read."""

    def __init__(self, array: np.ndarray) -> None:
        interface = array.__array_interface__
        self.array, self.__array_interface__ = array, {**interface, "data": (interface["data"][0], False)}


def pinned_empty(shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    """Return an uninitialized array in page-locked memory; None if none is available.

    Raises:
        MoveError: torch lacks the dtype.
    """
    import torch

    tensor = _pinned_like(torch.empty(shape, dtype=_torch_dtype(numpy_dtype(dtype)), device="meta"))
    return as_array(tensor) if tensor.is_pinned() else None


def copied_async(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """Return a tensor of the host on `target`, by an asynchronous copy if page-locked memory is available.

    Safe without waiting: the source of the copy is an internal buffer, so the caller may change `tensor` immediately,
    and torch's host allocator reuses that buffer only after the copy's event.
    """
    if tensor.requires_grad:
        return tensor.to(target)
    buffer = _pinned_like(tensor)
    return buffer.copy_(tensor).to(target, non_blocking=buffer.is_pinned())


def _pinned_like(like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor in host memory, page-locked if such memory is left, and exists for this layout."""
    import torch

    try:
        return torch.empty_like(like, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty_like(like, device="cpu")


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    try:
        return as_tensor(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise MoveError(
            f"torch has no dtype for NumPy's {dtype}",
            available="float16, bfloat16, float32, float64, complex, bool, and integers of 8 to 64 bits",
            hint="convert the array first, for example with array.astype('float32')",
        ) from None


def can_copy_aside(host: torch.Tensor, target: torch.device) -> bool:
    """Whether `copied_aside` works: the tensor is in page-locked memory, and the device has streams."""
    import torch

    return host.is_pinned() and hasattr(torch.get_device_module(target), "Stream")


def copied_aside(host: torch.Tensor, target: torch.device) -> AsyncCopy:
    """Return a copy of a page-locked tensor to `target`, made by a stream that runs in parallel with the computing one.

    The copy's memory belongs to the copying stream; `record_stream` keeps torch from reusing it before the computing
    stream is done, even if the tensor is freed earlier.
    """
    import torch

    module = torch.get_device_module(target)
    copy_stream = _copy_stream(target)
    with module.stream(copy_stream):
        tensor = host.to(target, non_blocking=True)
        copied = copy_stream.record_event()

    def wait() -> None:
        computing = module.current_stream(target)
        computing.wait_event(copied)
        tensor.record_stream(computing)

    return AsyncCopy(tensor, wait, copied.synchronize)


@cache
def _copy_stream(target: torch.device) -> Any:
    """The stream for copies to a device; one is enough, as they share one bus."""
    import torch

    return torch.get_device_module(target).Stream(target)


# -- -------------------------------------------------------------------------------------------------------------------
# Tensors and arrays on one memory, bfloat16 among them: NumPy itself lacks it, and has it from ml_dtypes.


BFLOAT16 = "bfloat16"


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return the array on the memory of a dense tensor on the CPU without gradients; `ml_dtypes.bfloat16` for bfloat16.

    A DTensor is gathered, by all processes of its mesh together.

    Raises:
        TypeError, RuntimeError: as `Tensor.numpy`.
    """
    import torch

    gather = getattr(tensor, "full_tensor", None)
    tensor = tensor if gather is None else gather()
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    array: np.ndarray = tensor.view(torch.int16).numpy().view(numpy_dtype(BFLOAT16))
    return array


def view_of(tensor: torch.Tensor) -> np.ndarray | None:
    """Return a read-only array on the memory of a tensor; None if NumPy cannot have one.

    `Tensor.numpy` would forbid torch to resize the tensor from then on.
    """
    import torch

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not is_plain or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
        return None
    values = tensor.detach()
    try:
        if values.dtype is torch.bfloat16:
            array = np.from_dlpack(values.view(torch.int16)).view(numpy_dtype(BFLOAT16))
        else:
            array = np.from_dlpack(values)
    except (RuntimeError, TypeError, BufferError):  # dtypes that NumPy lacks
        return None
    array.setflags(write=False)
    return array


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return the tensor on the memory of a writable array.

    Raises:
        TypeError: torch lacks the dtype.
    """
    import torch

    if array.dtype.kind != "V" or array.dtype.name != BFLOAT16:  # kinds are found faster than names
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype with a name; bfloat16 has one once ml_dtypes is imported."""
    if name == BFLOAT16:
        import ml_dtypes  # noqa: F401
    return np.dtype(name)


# -- The tensors in nested containers of torch objects, and names of their dtypes --------------------------------------


def tensors_in(obj: Any) -> Iterator[Any]:
    """Yield the tensors in a tensor, module, optimizer (its parameters), dict, list or tuple; none in other objects."""
    import torch

    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        yield from chain(obj.parameters(), obj.buffers())
    elif isinstance(obj, torch.optim.Optimizer):
        yield from chain.from_iterable(group["params"] for group in obj.param_groups)
    elif isinstance(obj, (Mapping, list, tuple)):
        for item in obj.values() if isinstance(obj, Mapping) else obj:
            yield from tensors_in(item)


def dtype_name(dtype: Any) -> str:
    """Return NumPy's name of a torch dtype; NumPy knows bfloat16 from now on."""
    name = str(dtype).removeprefix("torch.")
    return numpy_dtype(name).name if name == BFLOAT16 else name


def check_dtypes(obj: Any, device: object, unsupported: frozenset[str]) -> None:
    """Check that no tensor in `obj` has a dtype that `device` cannot hold.

    Raises:
        MoveError: a tensor has a dtype in `unsupported`.
    """
    if not unsupported:
        return
    for name in {dtype_name(tensor.dtype) for tensor in tensors_in(obj)} & unsupported:
        raise MoveError(f"{device} cannot hold {name}, and a move keeps the dtype", hint="cast it first: .float()")
