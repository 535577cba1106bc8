"""Tensors of other frameworks through DLPack.

TensorFlow imports host memory with any alignment, and the process dies at the first kernel that needs alignment; and it
refuses strides. So the capsule is read first, and memory that TensorFlow cannot use is copied.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from anyaccel_tensorflow.host_transfer import copy_to_cpu

_ALIGNMENT = 64  # as of TensorFlow's own allocator
_HOST_DEVICE = 1  # kDLCPU
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
    """The content of a capsule: address, device type, NumPy's kind, bytes of an item, shape, and strides in items."""

    address: int
    device: int
    kind: str
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def from_foreign(foreign: Any) -> tf.Tensor:
    """Return a tensor in the memory of a foreign one, or a copy where TensorFlow cannot use that memory.

    Raises:
        BufferError, RuntimeError, TypeError, ValueError, AttributeError: from its owner, or from TensorFlow.
    """
    capsule = foreign.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense
    kind = _KINDS.get(tensor.code, "?") if tensor.lanes == 1 else "?"
    memory = _Memory(
        (tensor.data or 0) + tensor.byte_offset, tensor.device_type, kind, tensor.bits // 8, shape, strides
    )
    if memory.device == _HOST_DEVICE and not _is_usable(memory):
        if memory.kind == "?" or memory.size == 0:
            raise BufferError("TensorFlow does not have its dtype")
        # NumPy has no bfloat16: its two bytes are copied
        dtype = np.dtype("u2" if memory.kind == "bf" else f"{memory.kind}{memory.size}")
        low = sum(min((extent - 1) * stride, 0) for extent, stride in zip(memory.shape, memory.strides, strict=True))
        high = sum(max((extent - 1) * stride, 0) for extent, stride in zip(memory.shape, memory.strides, strict=True))
        items = ctypes.c_char * ((high - low + 1) * memory.size)
        raw = np.frombuffer(memoryview(items.from_address(memory.address + low * memory.size)), dtype)
        byte_strides = tuple(stride * memory.size for stride in memory.strides)
        view = np.lib.stride_tricks.as_strided(raw[-low:], memory.shape, byte_strides)
        copy = view.view(tf.bfloat16.as_numpy_dtype) if memory.kind == "bf" else view
        return copy_to_cpu(copy)
    try:
        return tf.experimental.dlpack.from_dlpack(capsule)
    except tf.errors.OpError as error:
        raise ValueError(str(error)) from error


def _is_usable(memory: _Memory) -> bool:
    if 0 in memory.shape:
        return True
    step, dense = 1, True
    for extent, stride in zip(reversed(memory.shape), reversed(memory.strides), strict=True):
        dense, step = dense and stride in (step, *([stride] if extent == 1 else [])), step * extent
    return dense and memory.address % _ALIGNMENT == 0
