"""Arrays of the host and tensors of other frameworks: what is shared, what is copied, what is refused."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU, SECOND = Device("cpu", 0), Device("cpu", 1)


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


def aligned(count: int, dtype: str = "float32", off: int = 0) -> np.ndarray:
    """An array whose memory begins `off` bytes after a multiple of 64."""
    size = np.dtype(dtype).itemsize
    raw = np.zeros(count * size + 128, "u1")
    start = -address(raw) % 64 + off
    result = raw[start : start + count * size].view(dtype)
    result[:] = np.arange(count)
    return result


class Foreign:
    """A tensor of some framework that is neither NumPy nor TensorFlow, in the memory of an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **settings: Any) -> Any:
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


# -- from the host ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
@pytest.mark.parametrize("size", [0, 1, 4096])
def test_from_host_owns_its_memory(backend: TensorFlowBackend, device: Device, size: int) -> None:
    array = aligned(size)
    before = array.copy()
    tensor = backend.from_host(array, device)
    array[:] = -1
    np.testing.assert_array_equal(np.asarray(tensor), before)
    assert backend.device_of(tensor) == device


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "float16"])
def test_an_owned_array_is_used_in_place(backend: TensorFlowBackend, dtype: str) -> None:
    array = aligned(12, dtype)
    before, where, owner = array.copy(), address(array), weakref.ref(array.base)
    tensor = backend.from_host_owned(array.reshape(3, 4), CPU)
    assert address(tensor) == where
    del array
    gc.collect()
    assert owner() is not None  # TensorFlow keeps the array alive
    np.testing.assert_array_equal(np.asarray(tf.square(tensor) / tensor)[1:], (before.reshape(3, 4))[1:])
    del tensor
    gc.collect()
    assert owner() is None  # until the tensor is gone


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_other_arrays_are_copied(backend: TensorFlowBackend, dtype: str) -> None:
    array = aligned(12, dtype)
    for tensor in (backend.from_host_owned(array, CPU), backend.from_host(array, CPU)):
        assert address(tensor) != address(array)
        np.testing.assert_array_equal(np.asarray(tensor), array)


def test_an_owned_array_is_copied_to_another_cpu(backend: TensorFlowBackend) -> None:
    tensor = backend.from_host_owned(aligned(12), SECOND)
    assert backend.device_of(tensor) == SECOND
    np.testing.assert_array_equal(np.asarray(tensor), np.arange(12))


def test_unaligned_foreign_memory_is_copied(backend: TensorFlowBackend) -> None:
    sealed = aligned(12)
    sealed.flags.writeable = False
    for array in (aligned(12, off=4), aligned(24)[::2], sealed):
        tensor = backend.from_host_owned(array, CPU)
        assert address(tensor) % 64 == 0 and address(tensor) != address(array)
        np.testing.assert_array_equal(np.asarray(tensor), array)


def test_a_copy_for_the_cpu_is_made_once(backend: TensorFlowBackend) -> None:
    array = np.ones((1000, 50), "float32")
    with mock.patch.object(tf, "constant", side_effect=AssertionError("a second copy")):
        tensor = backend.from_host(array, CPU)
    np.testing.assert_array_equal(np.asarray(tensor), array)


def test_buffers_are_aligned_and_sent_by_a_copy(backend: TensorFlowBackend) -> None:
    buffer = backend.staging_buffer((4, 2), "float32", CPU)
    assert address(buffer) % 64 == 0
    buffer[...] = 1
    sent = backend.copy_async(buffer, CPU)
    buffer[...] = 7
    np.testing.assert_array_equal(np.asarray(sent.tensor), np.ones((4, 2)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_16_bit_floats_are_transferred_in_both_directions(backend: TensorFlowBackend, dtype: str) -> None:
    array = np.arange(4).astype(getattr(ml_dtypes, dtype, dtype))
    tensor = backend.from_host(array, CPU)
    assert tensor.dtype.name == dtype
    assert backend.to_host(tensor).dtype == array.dtype
    np.testing.assert_array_equal(backend.to_host(tensor), array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"]),
        np.array([b"text"]),
        np.array([object()]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, np.longdouble),
        np.zeros(2, [("a", "i4")]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_dtypes_that_no_device_holds_are_refused(backend: TensorFlowBackend, array: np.ndarray) -> None:
    with pytest.raises(MoveError, match=r"TensorFlow has no dtype for NumPy's .*Hint: convert the array"):
        backend.from_host(array, CPU)


def test_to_host_shares_memory_on_the_cpu_and_lets_nobody_write(backend: TensorFlowBackend) -> None:
    tensor = backend.from_host(np.ones(64, "float32"), CPU)
    result = backend.to_host(tensor)
    assert address(result) == address(tensor) and not result.flags.writeable


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tf.constant(["text"]), "a tensor of dtype string"),
        (lambda: tf.sparse.from_dense([[0.0, 1.0]]), "a SparseTensor.*tf.sparse.to_dense"),
        (lambda: tf.ragged.constant([[1.0], []]), "a RaggedTensor.*to_tensor"),
        (lambda: tf.Variable(1.0).handle, "a tensor of dtype resource"),
    ],
    ids=["text", "sparse", "ragged", "resource"],
)
def test_tensors_that_numpy_cannot_hold_are_refused(
    backend: TensorFlowBackend, make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(MoveError, match=f"NumPy cannot hold {message}"):
        backend.to_host(make())


# -- from others -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool", "complex64", "float16"])
def test_adopted_memory_is_shared(backend: TensorFlowBackend, device: Device, dtype: str) -> None:
    foreign = aligned(128, dtype)
    tensor = backend.from_dlpack(Foreign(foreign), device)
    assert address(tensor) == address(foreign)
    assert backend.device_of(tensor) == device and tensor.dtype.name == dtype
    foreign[0] = 1
    assert np.asarray(tensor)[0] == 1


def test_exported_tensors_share_memory(backend: TensorFlowBackend) -> None:
    for device in (CPU, SECOND):
        tensor = backend.from_host(np.ones(64, "float32"), device)
        assert address(np.from_dlpack(tensor)) == address(tensor)


@pytest.mark.parametrize("off", [4, 16, 32])
def test_memory_that_tensorflow_would_die_of_is_copied(backend: TensorFlowBackend, off: int) -> None:
    """TensorFlow imports unaligned memory, and crashes at the first kernel that needs it aligned."""
    foreign = aligned(64, off=off)
    tensor = backend.from_dlpack(Foreign(foreign), CPU)
    assert address(tensor) % 64 == 0
    np.testing.assert_array_equal((tensor[1:] + 1.0).numpy(), foreign[1:] + 1)
    foreign[:] = -1
    assert np.asarray(tensor)[1] == 1


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: a[::2], id="every second row"),
        pytest.param(lambda a: a[::-1], id="backwards"),
        pytest.param(lambda a: a[:, ::-2], id="backwards in steps"),
        pytest.param(lambda a: a[:, 1], id="a column"),
        pytest.param(lambda a: np.broadcast_to(a[:1], (4, 8)).copy()[:, None], id="an axis of one"),
        pytest.param(lambda a: a[2, 3], id="a number"),
        pytest.param(lambda a: a[:0], id="nothing"),
        pytest.param(lambda a: a[:1, ::3], id="one row in steps"),
    ],
)
def test_any_strides_are_taken(backend: TensorFlowBackend, view: Any) -> None:
    foreign = np.asarray(view(aligned(64).reshape(8, 8)))
    np.testing.assert_array_equal(np.asarray(backend.from_dlpack(Foreign(foreign), CPU)), foreign)


def test_read_only_arrays_are_copied(backend: TensorFlowBackend) -> None:
    array = aligned(64)
    array.flags.writeable = False
    tensor = backend.from_dlpack(array, CPU)
    assert address(tensor) != address(array)
    np.testing.assert_array_equal(np.asarray(tensor), array)


def test_an_adopted_tensor_outlives_the_name_of_its_owner(backend: TensorFlowBackend) -> None:
    foreign = Foreign(aligned(4096))
    tensor = backend.from_dlpack(foreign, CPU)
    del foreign
    [np.full(4096, 7, "float32") for _ in range(20)]
    np.testing.assert_array_equal(np.asarray(tensor), np.arange(4096))


def test_nothing_computed_is_written_into_adopted_memory(backend: TensorFlowBackend) -> None:
    """TensorFlow reuses the memory of inputs that are no longer needed, but never imported memory."""
    step = tf.function(lambda x: tf.nn.relu(-x) + 1.0)
    for act in (lambda x: tf.nn.relu(-x), step, lambda x: tf.function(lambda y: -y)(x)):
        foreign = aligned(4096)
        for _ in range(3):
            act(backend.from_dlpack(Foreign(foreign), CPU))
        np.testing.assert_array_equal(foreign, np.arange(4096))


def test_a_tensor_of_its_own_is_moved_only(backend: TensorFlowBackend) -> None:
    with tf.device("/CPU:0"):
        tensor = tf.constant([1.0])
    assert backend.from_dlpack(tensor, CPU) is tensor
    assert backend.device_of(backend.from_dlpack(tensor, SECOND)) == SECOND


class Elsewhere(Foreign):
    """Says that its memory is on a device of a kind that TensorFlow lacks here."""

    def __dlpack__(self, **settings: Any) -> Any:
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int32.from_address(get(capsule, b"dltensor") + 8).value = 8  # kDLMetal
        return capsule


class Wide(Foreign):
    """With vector elements, which no framework here supports."""

    def __dlpack__(self, **settings: Any) -> Any:
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_uint16.from_address(get(capsule, b"dltensor") + 22).value = 4
        return capsule


class Refusing:
    def __dlpack__(self, **settings: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


STRANGE = [object(), 3, "text", Refusing(), Elsewhere(aligned(64)), Wide(aligned(64, off=4))]


@pytest.mark.parametrize("foreign", STRANGE, ids=lambda case: type(case).__name__)
def test_objects_that_dlpack_cannot_import_are_refused(backend: TensorFlowBackend, foreign: Any) -> None:
    with pytest.raises(MoveError, match=r"TensorFlow cannot import a .* through DLPack.*from_host"):
        backend.from_dlpack(foreign, CPU)


def test_torch_and_back(backend: TensorFlowBackend) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        foreign = torch.arange(64).to(dtype)
        tensor = backend.from_dlpack(foreign, SECOND)
        assert foreign.data_ptr() == address(tensor)
        assert str(dtype) == f"torch.{tensor.dtype.name}"
    strided = torch.arange(64.0).to(torch.bfloat16).reshape(8, 8).T[1:]
    taken = backend.from_dlpack(strided, CPU)
    np.testing.assert_array_equal(np.asarray(taken).astype("float32"), strided.float().numpy())
    assert torch.from_dlpack(tensor).data_ptr() == address(tensor)
    with pytest.raises(MoveError, match=r"torch.Tensor through DLPack.*gradient"):
        backend.from_dlpack(torch.ones(3, requires_grad=True), CPU)


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
def test_rows_under_the_explicit_policy(backend: TensorFlowBackend, device: Device) -> None:
    """As inside a phase."""
    column = backend.from_host(np.arange(24.0).reshape(8, 3), device)
    order = backend.from_host(np.array([5, 0, 7, 2]), device)
    tf.config.experimental.set_device_policy("explicit")
    try:
        result, cut = backend.gather_rows(column, 1, 3, order), backend.gather_rows(column, 6, 20)
    finally:
        tf.config.experimental.set_device_policy("silent")
    assert backend.device_of(result) == backend.device_of(cut) == device
    np.testing.assert_array_equal(np.asarray(result)[:, 0], [0.0, 21.0])
    np.testing.assert_array_equal(np.asarray(cut)[:, 0], [18.0, 21.0])


def test_int32_orders_are_taken_as_well(backend: TensorFlowBackend) -> None:
    column = backend.from_host(np.arange(24.0).reshape(8, 3), SECOND)
    order = backend.from_host(np.array([5, 0], "int32"), SECOND)
    np.testing.assert_array_equal(np.asarray(backend.gather_rows(column, 0, 2, order))[:, 0], [15.0, 0.0])
