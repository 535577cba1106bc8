"""Safetensors files: read array by array, without a second copy of the file in memory. They run no code."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import StateError

SUFFIX = ".safetensors"
_LARGEST_HEADER = 100 * 10**6  # as in safetensors itself
_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class ArrayEntry(NamedTuple):
    """An array of a file: its dtype and shape, and where its bytes are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.dtype.itemsize * math.prod(self.shape)


def header(path: Path) -> dict[str, ArrayEntry]:
    """The arrays of a file by name, without reading them.

    Raises:
        StateError: not such a file, or a damaged one.
    """
    with _opened(path) as stream:
        return _header(path, stream)


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name, in memory of their own.

    Raises:
        StateError: not such a file, or a damaged one.
    """
    with _opened(path) as stream:
        return {name: _array(path, stream, entry) for name, entry in _header(path, stream).items()}


def write(path: Path, arrays: Mapping[str, np.ndarray], file_format: str = "") -> None:
    """Write a file, all at once: beside it first, which is then renamed.

    Args:
        path: of the file; an existing one is replaced.
        arrays: by name.
        file_format: for readers that ask which framework wrote it.

    Raises:
        StateError: arrays of a dtype that the format lacks.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    plain = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    try:
        publish(path, lambda file: save_file(plain, file, {"format": file_format} if file_format else None))
    except (SafetensorError, ValueError, KeyError) as error:
        kinds = ", ".join(sorted({str(array.dtype) for array in plain.values()}))
        raise StateError(f"the weights cannot be written as safetensors: {error}", available=f"{kinds}") from error


def publish(path: Path, write_file: Callable[[Path], object]) -> None:
    """Let a function write a file, which has its name when it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_file(temporary)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise StateError(f"{str(path)!r} cannot be read: {error}", hint="give a file of weights") from error


def _damaged(path: Path, why: str) -> StateError:
    return StateError(f"{str(path)!r} is no complete safetensors file: {why}", hint="copy or download it again")


def _header(path: Path, stream: IO[bytes]) -> dict[str, ArrayEntry]:
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(_LARGEST_HEADER, size - 8):
        raise _damaged(path, f"its header would have {length:,} bytes, the file has {size:,}")
    try:
        given = json.loads(stream.read(length))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise _damaged(path, f"its header is {shown(given)}")
    given.pop("__metadata__", None)
    return {name: _entry(path, name, entry, 8 + length, size) for name, entry in given.items()}


def _entry(path: Path, name: str, given: Any, start: int, size: int) -> ArrayEntry:
    try:
        dtype, shape, (begin, end) = _dtype(given["dtype"]), given["shape"], given["data_offsets"]
        counts = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(path, f"{name!r} is {shown(given)}") from error
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise _damaged(path, f"{name!r} is {shown(given)}")
    entry = ArrayEntry(dtype, tuple(shape), start + begin)
    if end - begin != entry.nbytes or start + end > size:
        raise _damaged(
            path, f"{name!r} has {entry.nbytes:,} bytes, of which it holds {min(end, size - start) - begin:,}"
        )
    return entry


def _dtype(code: str) -> np.dtype[Any]:
    if code not in _ML_DTYPES:
        return np.dtype(_DTYPES[code])
    try:
        import_module("ml_dtypes")
    except ImportError as error:
        problem, hint = (
            f"the file has arrays of {_ML_DTYPES[code]}, which NumPy lacks",
            "python -m pip install ml_dtypes",
        )
        raise StateError(problem, hint=hint) from error
    return np.dtype(_ML_DTYPES[code])


def _array(path: Path, stream: IO[bytes], entry: ArrayEntry) -> np.ndarray:
    array = np.empty(entry.shape, entry.dtype)
    stream.seek(entry.start)
    n_read = stream.readinto(array.reshape(-1).view(np.uint8)) if entry.nbytes else 0  # type: ignore[attr-defined]
    if n_read != entry.nbytes:
        raise _damaged(path, f"it ended while it was read, {entry.nbytes - n_read:,} bytes too early")
    return array
