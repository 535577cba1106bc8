"""The dtypes of safetensors: their codes, such as "F32", and NumPy's dtypes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from anyaccel.errors import StateError

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
    """NumPy's dtype for a code.

    Raises:
        KeyError: unknown.
        StateError: NumPy has none of 8 bits, or no bfloat16 here.
    """
    if code in _BYTE_FLOATS:
        problem, hint = f"it has arrays of {_BYTE_FLOATS[code]}, which NumPy lacks", "convert them to float16 first"
        raise StateError(problem, hint=hint)
    return _bfloat16() if code == _BFLOAT16 else _DTYPES[code]


def code_of(dtype: np.dtype[Any]) -> str:
    """The code for a dtype of NumPy, in any order of bytes.

    Raises:
        KeyError: there is none.
    """
    return _BFLOAT16 if dtype.name == "bfloat16" else _CODES[dtype.newbyteorder("<")]


def name_of(code: str) -> str:
    """The name of a dtype, which NumPy need not have here.

    Raises:
        KeyError: unknown.
    """
    return _BYTE_FLOATS.get(code) or ("bfloat16" if code == _BFLOAT16 else _DTYPES[code].name)


def itemsize_of(code: str) -> int:
    """Bytes of an element.

    Raises:
        KeyError: unknown.
    """
    if code in _BYTE_FLOATS:
        return 1
    return 2 if code == _BFLOAT16 else _DTYPES[code].itemsize


def _bfloat16() -> np.dtype[Any]:
    """NumPy has it from ml_dtypes, which the plugins bring along whose frameworks have it."""
    try:
        import_module("ml_dtypes")
    except ImportError as error:
        problem, hint = "the state has arrays of bfloat16, which NumPy lacks", "python -m pip install ml_dtypes"
        raise StateError(problem, hint=hint) from error
    return np.dtype("bfloat16")
