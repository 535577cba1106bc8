"""Tensors of other frameworks through DLPack.

TensorFlow takes over memory of the host without looking where it begins, and ends the process at the first kernel that
wants it aligned; and it refuses strides. So the capsule is read first, and what does not fit is copied.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from anyaccel_tensorflow.host_transfer import owned

_ALIGNMENT = 64  # of TensorFlow's own allocator
_HOST = 1  # kDLCPU
_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c", 6: "b"}  # by DLDataTypeCode


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Memory(NamedTuple):
    """What a capsule says: where, of which type (NumPy's kind and bytes of an item), shape, and strides in items."""

    address: int
    device: int
    kind: str
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def taken(foreign: Any) -> tf.Tensor:
    """A tensor in the memory of a foreign one, or a copy of it where TensorFlow could not use that memory.

    Raises:
        BufferError, RuntimeError, TypeError, ValueError, AttributeError: as its owner or TensorFlow says.
    """
    capsule = foreign.__dlpack__()
    found = _read(capsule)
    if found.device == _HOST and not _fits(found):
        return _copied(found)
    try:
        return tf.experimental.dlpack.from_dlpack(capsule)
    except tf.errors.OpError as error:
        raise ValueError(str(error)) from error


def _read(capsule: Any) -> _Memory:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense
    kind = _KINDS.get(tensor.code, "?") if tensor.lanes == 1 else "?"
    return _Memory((tensor.data or 0) + tensor.byte_offset, tensor.device_type, kind, tensor.bits // 8, shape, strides)


def _fits(found: _Memory) -> bool:
    if 0 in found.shape:
        return True
    step, dense = 1, True
    for extent, stride in zip(reversed(found.shape), reversed(found.strides), strict=True):
        dense, step = dense and stride in (step, *([stride] if extent == 1 else [])), step * extent
    return dense and found.address % _ALIGNMENT == 0


def _copied(found: _Memory) -> tf.Tensor:
    """A copy, as NumPy sees the memory; bfloat16, which NumPy lacks, goes as two bytes."""
    if found.kind == "?" or found.size == 0:
        raise BufferError("its dtype is none of TensorFlow's")
    dtype = np.dtype("u2" if found.kind == "bf" else f"{found.kind}{found.size}")
    low = sum(min((extent - 1) * stride, 0) for extent, stride in zip(found.shape, found.strides, strict=True))
    high = sum(max((extent - 1) * stride, 0) for extent, stride in zip(found.shape, found.strides, strict=True))
    items = ctypes.c_char * ((high - low + 1) * found.size)
    raw = np.frombuffer(memoryview(items.from_address(found.address + low * found.size)), dtype)
    steps = tuple(stride * found.size for stride in found.strides)
    view = np.lib.stride_tricks.as_strided(raw[-low:], found.shape, steps)
    copy = view.view(tf.bfloat16.as_numpy_dtype) if found.kind == "bf" else view
    return owned(copy, "/CPU:0")
