"""Tensors from and to host memory and through DLPack; and the memory capability."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.errors import MoveError, OutOfMemoryError
from anyaccel.host_memory import HostMemory
from anyaccel_torch import host_transfer
from anyaccel_torch.backend import TorchBackend

CPU, GPU = Device("cpu"), Device("gpu")
INTEGERS = [f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64)]
DTYPES = ["float16", "float32", "float64", "bool", "complex64", *INTEGERS]


def strided() -> np.ndarray:
    return np.arange(24, dtype="float32").reshape(4, 6)[::-1, ::2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_host_and_to_host_keep_values_and_dtype(backend: TorchBackend, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = backend.from_host(array, CPU)
    assert str(tensor.dtype) == f"torch.{dtype}"
    result = backend.to_host(tensor)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    "array", [strided(), np.float32(3.5).reshape(()), np.zeros((0, 3)), np.arange(3, dtype=">i4"), np.arange(3)[::-1]]
)
def test_arrays_of_any_layout_are_copied(backend: TorchBackend, array: np.ndarray) -> None:
    tensor = backend.from_host(array, CPU)
    assert tensor.is_contiguous() and tuple(tensor.shape) == array.shape
    np.testing.assert_array_equal(backend.to_host(tensor), array)


@pytest.mark.parametrize("pinned", [False, True])
def test_tensor_from_host_owns_its_memory(backend: TorchBackend, pinned: bool) -> None:
    array = np.ones(3, dtype="float32")
    tensor = backend.from_host(array, CPU, pinned=pinned)
    array[:] = 5
    assert tensor.tolist() == [1, 1, 1]


def test_read_only_arrays_are_copied_without_a_warning(backend: TorchBackend) -> None:
    array = np.ones(3, dtype="float32")
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for take in (backend.from_host, backend.from_dlpack):
            tensor = take(array, CPU)
            tensor += 1
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["datetime64[s]", "object", "U3"])
def test_dtypes_that_torch_lacks_raise_move_error(backend: TorchBackend, dtype: str) -> None:
    with pytest.raises(MoveError, match=r"torch has no dtype for NumPy's .*Hint: convert the array first"):
        backend.from_host(np.empty(2, dtype), CPU)


def test_from_host_out_of_memory_raises_out_of_memory_error(backend: TorchBackend) -> None:
    array = np.broadcast_to(np.float32(0), (2**48,))
    with pytest.raises(OutOfMemoryError, match=r"not enough memory for an array of 1125899906842624 bytes on cpu:0"):
        backend.from_host(array, CPU)


def test_pinned_memory_is_used_for_pinned_kinds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pinning(TorchBackend):
        pinned_kinds = frozenset({"cpu"})

    pin_requests: list[bool] = []
    real = torch.empty_like

    def recorded(like: torch.Tensor, *, device: str, pin_memory: bool = False) -> torch.Tensor:
        pin_requests.append(pin_memory)
        return real(like, device=device)

    monkeypatch.setattr(torch, "empty_like", recorded)
    Pinning().from_host(np.ones(3), CPU, pinned=True)
    Pinning().from_host(np.ones(3), CPU)
    assert pin_requests == [True]  # the other was made without


# -- to_host ---------------------------------------------------------------------------------------------------------


def test_to_host_converts_any_layout(backend: TorchBackend) -> None:
    trained = torch.ones(2, requires_grad=True) * 2
    assert backend.to_host(trained).tolist() == [2, 2]
    imaginary = torch.tensor([1 + 2j]).conj()
    assert backend.to_host(imaginary).tolist() == [1 - 2j]


@pytest.mark.parametrize("tensor", [torch.ones(2).to(torch.float8_e4m3fn), torch.eye(2).to_sparse()])
def test_to_host_of_unsupported_dtypes_raises_move_error(backend: TorchBackend, tensor: torch.Tensor) -> None:
    with pytest.raises(MoveError, match=r"NumPy cannot hold a tensor of torch\..*Hint: convert it first: tensor.float"):
        backend.to_host(tensor)
    converted = tensor.to_dense() if tensor.is_sparse else tensor.float()
    assert backend.to_host(converted).sum() == 2


# -- adopt -----------------------------------------------------------------------------------------------------------


def test_from_dlpack_shares_memory(backend: TorchBackend) -> None:
    array = np.zeros(3, dtype="float32")
    tensor = backend.from_dlpack(array, CPU)
    array[0] = 7
    assert tensor.tolist() == [7, 0, 0]


def test_from_dlpack_of_a_torch_tensor_is_a_move(backend: TorchBackend) -> None:
    tensor = torch.zeros(1)
    assert backend.from_dlpack(tensor, CPU) is tensor


class Refuses:
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it requires gradients\nand more")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize(("foreign", "reason"), [(Refuses(), "it requires gradients"), ([1.0], "invalid capsule")])
def test_from_dlpack_of_unsupported_objects_raises_move_error(backend: TorchBackend, foreign: Any, reason: str) -> None:
    with pytest.raises(MoveError, match=rf"cannot import a .*: .*{reason}.*Hint: .*from_host"):
        backend.from_dlpack(foreign, CPU)


# -- rows and scalars ------------------------------------------------------------------------------------------------


def test_gather_rows_is_a_view_without_an_order(backend: TorchBackend) -> None:
    column = torch.arange(12).reshape(6, 2)
    order = torch.tensor([5, 4, 3, 2, 1, 0])
    assert backend.gather_rows(column, 1, 3).tolist() == [[2, 3], [4, 5]]
    assert backend.gather_rows(column, 1, 3, order).tolist() == [[8, 9], [6, 7]]
    assert backend.gather_rows(column, 4, 9, order).shape == (2, 2)


def test_scalars_are_one_transfer(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(self) or real(self))
    values = [torch.tensor(float(i), requires_grad=True) for i in range(5)]
    result = backend.scalars(values)
    assert result.dtype == np.float64 and result.tolist() == [0, 1, 2, 3, 4]
    assert len(copies) == 1


def test_scalars_of_several_dtypes_keep_their_values(backend: TorchBackend) -> None:
    big = 2**40 + 1
    values = [torch.tensor(big), torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(True), torch.tensor([2.0])]
    assert backend.scalars(values).tolist() == [big, 0.5, 1, 2]
    assert backend.scalars([]).shape == (0,)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_of_the_cpu(backend: TorchBackend) -> None:
    result = backend.required(Memory).memory(CPU)
    assert result.total >= result.free > 0 and (result.used, result.peak) == (0, 0)
    backend.required(Memory).release_memory(CPU)


def test_memory_of_the_cpu_where_the_system_does_not_say(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyaccel_torch.backend.host_memory", lambda: HostMemory(0, 0))
    assert backend.required(Memory).memory(CPU) == MemoryInfo(0, 0, 0, 0)


def test_memory_of_a_gpu(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    cuda = SimpleNamespace(
        mem_get_info=lambda device: (60, 100) if device == torch.device("cuda:0") else None,
        memory_allocated=lambda device: 30,
        max_memory_allocated=lambda device: 50,
        empty_cache=lambda: released.append(True),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: cuda)
    assert backend.required(Memory).memory(GPU) == MemoryInfo(total=100, free=60, used=30, peak=50)
    backend.required(Memory).release_memory(GPU)
    assert released == [True]


# -- given away, and sent ahead --------------------------------------------------------------------------------------


def test_from_host_owned_shares_the_array(backend: TorchBackend) -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    tensor = backend.from_host_owned(array, CPU)
    assert tensor.data_ptr() == array.ctypes.data
    owner = weakref.ref(array)
    del array
    assert owner() is not None  # the tensor keeps it
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("array", [strided(), np.arange(3, dtype=">i4"), np.frombuffer(bytearray(8), "float32")])
def test_from_host_owned_copies_arrays_it_cannot_share(backend: TorchBackend, array: np.ndarray) -> None:
    tensor = backend.from_host_owned(array, CPU)
    assert tensor.data_ptr() != array.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_from_host_owned_of_an_unsupported_dtype_raises_move_error(backend: TorchBackend) -> None:
    for act in (backend.from_host_owned, backend.copy_async):
        with pytest.raises(MoveError, match=r"torch has no dtype for NumPy's datetime64.*astype\('float32'\)"):
            act(np.zeros(2, "datetime64[s]"), CPU)
    with pytest.raises(MoveError, match=r"torch has no dtype for NumPy's datetime64"):
        backend.staging_buffer((2,), "datetime64[s]", GPU)


def test_unsupported_dtypes_of_a_chip_raise_move_error() -> None:
    class Chip(TorchBackend):
        unsupported_dtypes = frozenset({"float64"})

    with pytest.raises(MoveError, match="float64"):
        Chip().from_host_owned(np.zeros(2), CPU)


def test_staging_buffer_of_the_cpu_is_pageable_and_copied_once(backend: TorchBackend) -> None:
    buffer = backend.staging_buffer((4, 2), "float32", CPU)
    buffer[...] = 3
    sent = backend.copy_async(buffer[:3], CPU)
    buffer[...] = 5
    assert not sent.tensor.is_pinned() and sent.tensor.tolist() == [[3, 3]] * 3


class Cuda:
    """Records the calls of torch.cuda in order; copies are made on the CPU."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.Stream = self.new_stream

    def new_stream(self, device: torch.device) -> Any:
        self.calls.append(f"stream on {device}")
        event = SimpleNamespace(synchronize=lambda: self.calls.append("host waits for the copy"))
        return SimpleNamespace(record_event=lambda: self.calls.append("event") or event)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.calls.append("aside")
        yield
        self.calls.append("back")

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(wait_event=lambda event: self.calls.append("device waits for the copy"))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A GPU of which only the order of calls is real."""
    calls: list[str] = []
    module = Cuda(calls)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: calls.append("memory is noted"))
    to = torch.Tensor.to

    def copied(self: torch.Tensor, target: Any, *, non_blocking: bool = False) -> torch.Tensor:
        calls.append(f"copy to {target}{' meanwhile' if non_blocking else ''}")
        return to(self, "cpu", copy=True)

    monkeypatch.setattr(torch.Tensor, "to", copied)
    host_transfer._copy_stream.cache_clear()  # noqa: SLF001
    yield calls
    host_transfer._copy_stream.cache_clear()  # noqa: SLF001


def test_copy_async_uses_a_stream_of_its_own(backend: TorchBackend, cuda: list[str]) -> None:
    buffer = np.ones((4, 2), "float32")
    sent = backend.copy_async(buffer[:3], GPU)
    assert cuda == ["stream on cuda:0", "aside", "copy to cuda:0 meanwhile", "event", "back"]
    del cuda[:]
    sent.source_reusable()
    sent.wait()
    assert cuda == ["host waits for the copy", "device waits for the copy", "memory is noted"]
    del cuda[:]
    backend.copy_async(buffer, GPU)
    assert cuda == ["aside", "copy to cuda:0 meanwhile", "event", "back"]  # the stream is there


@pytest.mark.parametrize("array", [strided(), np.frombuffer(bytes(16), "float32")])
def test_copy_async_without_streams_copies_at_once(backend: TorchBackend, cuda: list[str], array: np.ndarray) -> None:
    backend.copy_async(array, GPU)
    assert cuda == ["copy to cuda:0"]


def test_copy_async_of_pageable_memory_copies_at_once(
    backend: TorchBackend, cuda: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    backend.copy_async(np.ones(3), GPU)
    assert cuda == ["copy to cuda:0"]


def test_staging_buffer_of_a_gpu_is_page_locked_while_available(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin_requests: list[bool] = []
    real = torch.empty_like

    def recorded(like: torch.Tensor, *, device: str, pin_memory: bool = False) -> torch.Tensor:
        pin_requests.append(pin_memory)
        if pin_memory and len(pin_requests) > 1:
            raise RuntimeError("no page-locked memory")
        return real(like, device=device)

    monkeypatch.setattr(torch, "empty_like", recorded)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: len(pin_requests) == 1)
    for _ in range(2):
        buffer = backend.staging_buffer((3, 2), "int32", GPU)
        buffer[...] = 1
        assert (buffer.shape, buffer.dtype) == ((3, 2), np.int32)
    assert pin_requests == [True, True, False]
