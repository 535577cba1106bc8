"""Tensor files: safetensors, written tensor by tensor and read so, with a hash of each and of the header.

The format is public: eight bytes with the length of the header, the header as JSON, the bytes of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import FileIO
from typing import IO, Any, NamedTuple

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.saved_folder import strict_json

_METADATA = "__metadata__"  # the one name in a header that is no tensor's
_LARGEST_HEADER = 100_000_000  # what other readers of the format take
_MOST_AXES = 32  # of NumPy 1
_PIECE = 2**20  # bytes that are read or written, and checked, at once: they are in a processor's cache the second time


@dataclass(frozen=True, slots=True)
class Digests:
    """The checksums of a file, in hexadecimal.

    CRC-32 detects every change of up to 32 bits in a row, and others but one in 2**32, at more than twice the rate of
    SHA-256; that a file was made to deceive neither would show, as the manifest that has them is not signed.

    Attributes:
        header: SHA-256 of the length and the header.
        tensors: CRC-32 of the bytes of each tensor, by name.
    """

    header: str
    tensors: Mapping[str, str]


class TensorEntry(NamedTuple):
    """A tensor of a file: the name of its dtype, its shape, its size in bytes, and the position of its first byte."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    begin: int


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a tensor is in a file: the bytes from `begin` to `end` after the header."""

    name: str
    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


def write(
    stream: IO[bytes],
    arrays: Mapping[str, np.ndarray],
    file_format: str = "pt",
    pause: Callable[[], object] | None = None,
) -> tuple[Digests, int]:
    """Write a whole file, and return its hashes, computed while writing, and its size.

    Args:
        stream: Stream at its beginning.
        arrays: Arrays by name; they must not change during the call.
        file_format: Format named in the header, which some readers require; `""` for none.
        pause: Function called after each MB, by a writer that leaves the processors to others.

    Raises:
        StateError: the format has no such dtype or name.
        OSError: the stream cannot be written.
    """
    if _METADATA in arrays:
        raise StateError(f"no tensor can be called {_METADATA!r} in safetensors")
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so each begins where it is aligned
    entries: dict[str, Any] = {_METADATA: {"format": file_format}} if file_format else {}
    begin = 0
    for name in order:
        array = arrays[name]
        try:
            code = code_of(array.dtype)
        except KeyError as error:
            raise StateError(f"safetensors has no dtype {array.dtype}") from error
        end = begin + array.nbytes
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    try:
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise StateError(f"a tensor name is not text: {shown(error.object[error.start : error.end])}") from error
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    contents = memoryview(header)
    while contents:
        contents = contents[stream.write(contents[:_PIECE]) :]
    tensors = dict.fromkeys(arrays, "")
    for name in order:
        contents = _bytes(arrays[name])
        crc = 0
        while contents:  # each piece is checksummed while it is in a processor's cache
            count = stream.write(contents[:_PIECE])
            crc = crc32(contents[:count], crc)
            contents = contents[count:]
            if pause is not None:
                pause()
        del contents  # it may hold a copy of the tensor, which must not live while the next is made
        tensors[name] = f"{crc:08x}"
    return Digests(_sha256(header), tensors), len(header) + begin


def contents(stream: IO[bytes], size: int) -> dict[str, TensorEntry]:
    """Return the entries of a file, by name, without reading the tensors.

    Args:
        stream: Stream at its beginning.
        size: Bytes of the file.

    Raises:
        StateError: not such a file.
        OSError: the stream cannot be read.
    """
    header = _read_header(stream, size)
    return {
        slot.name: TensorEntry(name_of(slot.code), slot.shape, slot.end - slot.begin, len(header) + slot.begin)
        for slot in _slots(header, size)
    }


def read(
    stream: IO[bytes], size: int, digests: Digests | None = None, *, mapped: bool = False
) -> dict[str, np.ndarray]:
    """Return the arrays of a file.

    Args:
        stream: Stream at its beginning.
        size: Bytes of the file; nothing beyond is read or allocated.
        digests: Expected hashes; None to check none.
        mapped: Whether arrays may be on a private mapping of a file of this machine, for callers that copy them at
            once: values change if something changes the file. Otherwise they are read-only and in separate memory.

    Raises:
        StateError: not such a file, or not with these hashes; the message names the tensor.
        OSError: the stream cannot be read.
    """
    header = _read_header(stream, size)
    if digests is not None and _sha256(header) != digests.header:
        raise StateError("its header differs from what was written")
    slots = _slots(header, size)
    if digests is not None and digests.tensors.keys() != {slot.name for slot in slots}:
        raise StateError("its tensors differ from those in the manifest")
    mapping = None
    if mapped and isinstance(stream, FileIO):
        with suppress(OSError, ValueError):  # a file system without mappings; a file that has become shorter
            mapping = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY)
    arrays: dict[str, np.ndarray] = {}
    wrong: list[str] = []
    for slot in slots:
        if mapping is None:
            dtype = dtype_of(slot.code)
            try:
                array = np.empty(slot.shape, dtype)
            except (MemoryError, ValueError) as error:
                problem = f"tensor {slot.name} of {slot.end - slot.begin:,} bytes does not fit into memory"
                raise StateError(problem, hint="load it on a machine with more memory") from error
            crc = _read_all(stream, array.reshape(-1).view(np.uint8).data, is_checked=digests is not None)
            array.setflags(write=False)
            arrays[slot.name] = array
        else:
            begin = len(header) + slot.begin
            arrays[slot.name] = array = np.ndarray(slot.shape, dtype_of(slot.code), mapping, begin)
            crc = 0 if digests is None else crc32(_bytes(array))
        if digests is not None and f"{crc:08x}" != digests.tensors[slot.name]:
            wrong.append(slot.name)
    if wrong:
        raise StateError(f"tensor {', '.join(wrong)} differs from what was written")
    return arrays


def _bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of an array in the order of the format; a copy if its memory has another order."""
    if array.dtype.str.startswith(">"):
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _read_all(stream: IO[bytes], into: memoryview, *, is_checked: bool = False) -> int:
    """Fill memory piece by piece, and return the CRC-32 if it is checked."""
    crc = 0
    while into:
        count = stream.readinto(into[:_PIECE])  # type: ignore[attr-defined]
        if not count:
            raise StateError("it is truncated")
        crc = crc32(into[:count], crc) if is_checked else 0
        into = into[count:]
    return crc


def _read_header(stream: IO[bytes], size: int) -> bytes:
    if size < 8:
        raise StateError("it is not a safetensors file")
    length = bytearray(8)
    _read_all(stream, memoryview(length))
    count = int.from_bytes(length, "little")
    if count > min(size - 8, _LARGEST_HEADER):
        raise StateError("it is not a safetensors file")
    text = bytearray(count)
    _read_all(stream, memoryview(text))
    return bytes(length + text)


def _slots(header: bytes, size: int) -> list[_Slot]:
    """Return the places of the tensors, in the order of the file; they fill the rest of it without a gap."""
    try:
        entries = strict_json.parse(header[8:])
        if not isinstance(entries, dict):
            raise ValueError("its header is not a dict")
        slots: list[_Slot] = []
        for name, entry in entries.items():
            if name == _METADATA:
                continue
            code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            is_tensor = isinstance(shape, list) and len(shape) <= _MOST_AXES
            for number in (*shape, begin, end) if is_tensor else ():
                is_tensor = is_tensor and type(number) is int and 0 <= number < 2**63
            if not is_tensor:
                raise ValueError(f"{shown(entry)} is not a tensor")
            if end - begin != math.prod(shape) * itemsize_of(code):
                raise ValueError(f"{shown(entry)} has a size that does not match its shape")
            slots.append(_Slot(name, code, tuple(shape), begin, end))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"its header is malformed: {type(error).__name__}: {error}") from error
    slots.sort(key=lambda slot: (slot.begin, slot.end))
    ends = [0, *(slot.end for slot in slots)]
    if [slot.begin for slot in slots] != ends[:-1] or ends[-1] != size - len(header):
        raise StateError("its header is malformed: the tensors overlap, or do not fill the file")
    return slots


# -- CRC-32 by the fastest that is installed; all give the same numbers ------------------------------------------------


def fastest_crc32() -> Callable[..., int]:
    """Return a function like `zlib.crc32`: that of isal if installed, which takes a tenth of the time, otherwise
    zlib's.
    """
    try:
        crc32: Callable[..., int] = import_module("isal.isal_zlib").crc32
    except ImportError:
        crc32 = import_module("zlib").crc32
    return crc32


crc32 = fastest_crc32()


# -- the dtypes of safetensors: their codes, such as "F32", and NumPy's dtypes -----------------------------------------


_FORMATS = {
    "BOOL": "?",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
_DTYPES = {code: np.dtype(name) for code, name in _FORMATS.items()}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_BFLOAT16 = "BF16"  # NumPy has it from ml_dtypes only
_BYTE_FLOATS = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""The names of dtypes that are read by frameworks alone."""


def dtype_of(code: str) -> np.dtype[Any]:
    """Return NumPy's dtype for a code.

    Raises:
        KeyError: unknown.
        StateError: NumPy has no such 8-bit dtype, or no bfloat16 here.
    """
    if code in _BYTE_FLOATS:
        problem = f"it has arrays of {_BYTE_FLOATS[code]}, which NumPy does not support"
        raise StateError(problem, hint="convert them to float16 first")
    if code != _BFLOAT16:
        return _DTYPES[code]
    try:
        import_module("ml_dtypes")  # a dependency of the plugins whose frameworks have it
    except ImportError as error:
        problem = "the state has arrays of bfloat16, which NumPy does not support"
        raise StateError(problem, hint="python -m pip install ml_dtypes") from error
    return np.dtype("bfloat16")


def code_of(dtype: np.dtype[Any]) -> str:
    """Return the code for a dtype of NumPy, in any byte order.

    Raises:
        KeyError: the dtype has no code.
    """
    return _BFLOAT16 if dtype.name == "bfloat16" else _CODES[dtype.newbyteorder("<")]


def name_of(code: str) -> str:
    """Return the name of a dtype, which NumPy may lack here.

    Raises:
        KeyError: unknown.
    """
    return _BYTE_FLOATS.get(code) or ("bfloat16" if code == _BFLOAT16 else _DTYPES[code].name)


def itemsize_of(code: str) -> int:
    """Return bytes of an element.

    Raises:
        KeyError: unknown.
    """
    if code in _BYTE_FLOATS:
        return 1
    return 2 if code == _BFLOAT16 else _DTYPES[code].itemsize
